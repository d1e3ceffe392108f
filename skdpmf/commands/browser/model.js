"use strict";
// Model files and recommendations, without the page: what page.js and the tests use.
//
// The format and the formulas are those of docs/decisions/0017-model-files.md. A file may come from
// anyone. It is read exactly or refused by a ModelError, nothing of it is executed, and nothing
// larger than the file is made before all lengths have been checked.

class ModelError extends Error {}

const BEGINNING = '{"__metadata__":{"skdpmf":'; // behind the length of the header
const VERSION = 2;
const PREFIX = 8, DIGEST = 32;
const LONGEST_HEADER = 1e8; // of safetensors
const DEEPEST = 12;
const MOST_FACTORS = 1000; // a third of 1000^3 operations are half a second a change
const TYPICAL_LOG_COUNT = 4.5; // of skdpmf.mechanisms.als.pooled
// Of skdpmf.kernels.averaging: strengths of tastes, and weights without them and with each.
const TASTE_PENALTIES = [6, 24], TASTE_PRIOR = [2, 1, 1], SURE = 5;
// Of skdpmf.estimators.contract.recommend.
const TASTES = 0.5, LEAST_SPREAD = 0.2, POWER = 1.5, MEANS = 0.5, STATED = 1.5, USUAL = 4, RARE = 0.1;
const WORTH = 0.2; // of skdpmf.estimators.contract.answers
const BYTES = { F32: 4, F64: 8, I64: 8, U8: 1 };
const SINGLE = ["ranking.lists.encoder", "ranking.lists.factors"]; // in single precision
const CLASSES = [
  "AdaptiveWeightALS",
  "CacheSGDFactorizer",
  "DPCovarianceRecommender",
  "DPItemMeans",
  "DPMFSampler",
  "LocalDPGDDR",
];
// Control characters, marks that turn the direction of writing, halves of characters.
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/u;

function check(holds, trouble) {
  if (!holds) throw new ModelError(trouble);
}

/** Read the bytes of a model file (an ArrayBuffer); arrays of the model are views of it. */
async function readModel(buffer) {
  const bytes = new Uint8Array(buffer);
  const isModel = [...BEGINNING].every((c, i) => bytes[PREFIX + i] === c.charCodeAt(0));
  check(isModel, "it is no model file of skdpmf. Choose a file that model.save wrote");
  const end = bytes.length - DIGEST;
  check(await isIntact(bytes, end), "it is damaged or incomplete. Get it again");
  const length = new DataView(buffer).getBigUint64(0, true);
  check(length <= LONGEST_HEADER, `its header has ${length} bytes, more than ${LONGEST_HEADER}`);
  const start = PREFIX + Number(length);
  check(start <= end, "its header is longer than the file");
  const { __metadata__: metadata, ...table } = parsed(decoded(bytes.subarray(PREFIX, start)));
  check(isObject(metadata) && typeof metadata.skdpmf === "string", "it describes no model");
  const description = parsed(metadata.skdpmf);
  const { version } = description;
  check(
    version === VERSION,
    `it has version ${version} of the format, and this page reads ${VERSION}. Get a newer page`,
  );
  return checkedModel(description, checkedArrays(table, buffer, start));
}

async function isIntact(bytes, end) {
  check(
    globalThis.crypto?.subtle,
    "its checksum cannot be computed here. Open the page by https, from localhost or as a file",
  );
  const digest = await crypto.subtle.digest("SHA-256", bytes.subarray(0, end));
  return new Uint8Array(digest).every((byte, i) => byte === bytes[end + i]);
}

function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new ModelError("its header is no text");
  }
}

function parsed(text) {
  let header;
  try {
    header = JSON.parse(text);
  } catch {
    throw new ModelError("its header is no JSON");
  }
  checkPlain(header, 0);
  check(isObject(header), "its header is no object");
  return header;
}

function checkPlain(value, depth) {
  check(depth <= DEEPEST, "its header is nested too deeply");
  check(typeof value !== "number" || Number.isFinite(value), "a number in its header is not finite");
  check(typeof value !== "string" || !UNPRINTABLE.test(value), "a text in it is not printable");
  if (Array.isArray(value)) {
    for (const part of value) checkPlain(part, depth + 1);
  } else if (isObject(value)) {
    for (const pair of Object.entries(value)) for (const part of pair) checkPlain(part, depth + 1);
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function checkedArrays(table, buffer, start) {
  const arrays = new Map();
  let total = start;
  for (const [name, entry] of Object.entries(table)) {
    const { dtype, shape, data_offsets: ends } = isObject(entry) ? entry : {};
    const isCount = (n) => Number.isSafeInteger(n) && n >= 0 && n <= buffer.byteLength;
    const holds =
      Object.hasOwn(BYTES, dtype) && Array.isArray(shape) && [1, 2].includes(shape.length) &&
      Array.isArray(ends) && ends.length === 2 && [...shape, ...ends].every(isCount);
    check(holds, "an entry of its table of arrays is none");
    const count = shape.reduce((product, n) => product * n, 1), at = start + ends[0];
    const size = count * BYTES[dtype];
    const fits = ends[1] - ends[0] === size && at + size <= buffer.byteLength && at % BYTES[dtype] === 0;
    check(fits, "its arrays do not have the lengths that its header says");
    arrays.set(name, { dtype, shape, count, at });
    total += size;
  }
  check(total === buffer.byteLength, "its arrays do not have the lengths that its header says");
  return (name, ...shape) => {
    const array = arrays.get(name);
    if (!array) return null;
    const isSingle = SINGLE.includes(name);
    const fits = array.dtype === (isSingle ? "F32" : "F64") && array.shape.length === shape.length &&
      shape.every((n, i) => n === undefined || n === array.shape[i]);
    check(fits, `its array ${name} does not fit the others`);
    const values = new (isSingle ? Float32Array : Float64Array)(buffer, array.at, array.count);
    check(values.every(Number.isFinite), `its array ${name} holds a number that is not finite`);
    return { values, shape: array.shape };
  };
}

function checkedModel(header, array) {
  const { numbers, params } = header;
  check(CLASSES.includes(header.class), "its estimator is none of skdpmf's");
  check(isObject(numbers) && isObject(params), "it has no parameters");
  const { predictor = "svd" } = numbers;
  const implicit = numbers["item_model.implicit"] ?? false;
  const ratingRidge = numbers["item_model.rating_ridge"] ?? 0;
  check(predictor !== "knn", "it predicts by neighbours (predictor=\"knn\"), which this page cannot");
  check(predictor === "svd" && typeof implicit === "boolean", "its numbers do not fit together");
  check(typeof ratingRidge === "number" && ratingRidge >= 0, "its penalty is no number >= 0");
  const offsets = array("item_model.offsets", undefined);
  const size = offsets?.shape[0];
  check(size > 0, "it has no items");
  const factors = array("item_model.factors", size, undefined);
  check(factors, "it has no factors");
  const width = factors.shape[1];
  const encoder = array("item_model.encoder", size, width)?.values ?? null;
  const isSolvable = encoder || width <= MOST_FACTORS;
  check(isSolvable, `it has ${width} factors, more than ${MOST_FACTORS}`);
  const ridge = encoder ? array("item_model.ridge", 0, 0) : array("item_model.ridge", width, width);
  check(ridge, "it has no penalties");
  const itemRidge = array("item_model.item_ridge", size)?.values ?? null;
  check(itemRidge === null || (!encoder && itemRidge.every((n) => n >= 0)), "its doubts are none");
  const tastes = checkedTastes(numbers, array, size, !encoder && !implicit);
  check(width + tastes.count <= MOST_FACTORS || encoder, "it has too many factors and features");
  const { n_components: k } = numbers;
  check(Number.isSafeInteger(k) && k >= 0 && k <= width, "its number of components is none");
  const lists = checkedLists(numbers, array, size);
  check(!(implicit && lists), "clicks have one model");
  const range = implicit ? [0, 1] : (params.rating_range ?? [1, 5]);
  const holds = Array.isArray(range) && range.length === 2 && range[0] < range[1] &&
    range.every((end) => typeof end === "number" && Math.abs(end) < 1e100);
  check(holds, "its rating range is none");
  return {
    name: header.class,
    size,
    base: width, // of the released columns, after which come those of the features
    components: header.class === "DPItemMeans" ? 0 : k, // the last so many of the released columns
    width: width + tastes.count,
    offsets: offsets.values,
    factors: tastes.count ? sideBySide(factors.values, tastes.values, size) : factors.values,
    variance: tastes.variance,
    ridge: ridge.values,
    prior: array("item_model.prior", width + 1, width)?.values ?? null,
    encoder,
    lists,
    ratingRidge,
    itemRidge,
    implicit,
    low: range[0],
    high: range[1],
    ...checkedItems(header.items, size),
    statement: checkedStatement(header.card),
  };
}

/** Columns of public item features, for which users have tastes. */
function checkedTastes(numbers, array, size, areAllowed) {
  const { has_tastes: hasTastes } = numbers;
  check(typeof hasTastes === "boolean", "its tastes are none");
  if (!hasTastes) return { count: 0, variance: null };
  const variance = numbers["item_model.variance"] ?? 1;
  check(areAllowed && typeof variance === "number" && variance > 0, "its tastes are none");
  const features = array("features.values", size, undefined);
  check(features, "its item features are missing");
  return { count: features.shape[1], values: features.values, variance };
}

function sideBySide(left, right, size) {
  const [a, b] = [left.length / size, right.length / size];
  const both = new Float64Array(size * (a + b));
  for (let j = 0; j < size; j++) {
    both.set(left.subarray(j * a, (j + 1) * a), j * (a + b));
    both.set(right.subarray(j * b, (j + 1) * b), j * (a + b) + a);
  }
  return both;
}

/** What ranks beside predicted ratings, where the fit has it. */
function checkedLists(numbers, array, size) {
  const unit = numbers["ranking.unit"];
  if (unit === undefined) return null;
  check(typeof unit === "number" && unit > 0, "the unit of its ratings is no number above 0");
  const offsets = array("ranking.lists.offsets", size);
  const factors = array("ranking.lists.factors", size, undefined);
  const width = factors?.shape[1];
  const encoder = array("ranking.lists.encoder", size, width);
  check(offsets && factors && encoder, "its lists are incomplete");
  check(offsets.values.every((n) => n > 0), "its popularity is not above 0");
  check(array("ranking.lists.ridge", 0, 0), "its lists are incomplete");
  return {
    unit, width, base: width, offsets: offsets.values, factors: factors.values, encoder: encoder.values,
    implicit: false,
  };
}

/** Whether an id is of a type that JSON has not: its only entry is its text. */
function isTyped(id) {
  const texts = isObject(id) ? Object.values(id) : [];
  return texts.length === 1 && typeof texts[0] === "string";
}

/** Titles (else ids, else numbers) and lists of genres, one for each item. */
function checkedItems(items, size) {
  check(isObject(items), "it has no list of items");
  const { ids, titles, genres } = items;
  const lists = { ids, titles, genres };
  for (const [what, list] of Object.entries(lists)) {
    check(list === null || (Array.isArray(list) && list.length === size), `its ${what} do not fit`);
    const isText = (text) =>
      typeof text === "string" || (what === "ids" && (Number.isFinite(text) || isTyped(text)));
    check(list === null || list.every(isText), `its ${what} are no texts`);
  }
  const shown = (id) => (isObject(id) ? Object.values(id)[0] : String(id));
  const named = ids?.map(shown) ?? Array.from({ length: size }, (_, j) => `item ${j}`);
  const labels = (text) => text.split("|").map((label) => label.trim()).filter(Boolean);
  return { titles: titles ?? named, genres: genres?.map(labels) ?? named.map(() => []) };
}

function checkedStatement(card) {
  check(isObject(card) && isObject(card.statement), "it has no privacy statement");
  const { statement } = card;
  const { epsilon, delta, unit, neighbors, condition } = statement;
  const holds =
    card.format === "skdpmf privacy card 1" &&
    (epsilon === "inf" || (typeof epsilon === "number" && epsilon >= 0)) &&
    typeof delta === "number" && delta >= 0 && delta <= 1 &&
    ["user", "rating"].includes(unit) && ["add-remove", "replace"].includes(neighbors) &&
    typeof condition === "string" &&
    ["seeded", "personal", "local"].every((key) => typeof statement[key] === "boolean") &&
    ["assumptions", "not_covered", "notes", "unmet"].every(
      (key) => Array.isArray(statement[key]) && statement[key].every((t) => typeof t === "string"),
    );
  check(holds, "its privacy statement is none");
  return statement;
}

/** Describe a privacy statement in a few sentences. */
function describedStatement(statement) {
  const { epsilon, delta, unit, neighbors, condition, local, personal, seeded, unmet } = statement;
  if (epsilon === "inf") return ["No privacy: the model may reveal single ratings of people."];
  const who = unit === "user" ? "one person's whole history" : "one single rating";
  const how = neighbors === "replace" ? "with any other in its place" : "without it";
  const factor = Math.exp(epsilon);
  const ratio = factor < 1e6
    ? Number(factor.toPrecision(3)).toLocaleString("en")
    : `e to the ${epsilon.toPrecision(4)}`;
  const also = delta > 0 ? ` and delta = ${delta}` : "";
  const rest = delta > 0 ? `, up to a probability of ${delta}` : "";
  const sentences = [
    `Differential privacy with epsilon = ${Number(epsilon.toPrecision(4))}${also}: with ${who} or ` +
      `${how}, no ${local ? "report of a device" : "model"} was more than ${ratio} times as ` +
      `likely${rest}.`,
  ];
  if (unit === "rating") sentences.push("A person's whole history is protected less.");
  if (local) sentences.push("No server had to be trusted: each device added its own noise.");
  if (personal) sentences.push("People had levels of their own, of which this is the weakest.");
  if (condition) sentences.push(`This holds on condition of ${condition}; else nothing is promised.`);
  if (seeded) sentences.push("Warning: anybody who guesses the seed of this fit can subtract its noise.");
  return [...sentences, ...unmet.map((text) => `Not met: ${text}`)];
}

/** Fold ratings (a Map from items to values) into the model: the user's coordinates. */
function foldIn(model, ratings) {
  const { offsets, factors, prior, base, width: d } = model;
  const z = new Float64Array(d), known = z.subarray(0, base);
  if (ratings.size === 0) return z;
  const rated = [...ratings].sort((a, b) => a[0] - b[0]); // sums do not depend on who came first
  if (model.encoder) {
    for (const [j, value] of rated) addTo(z, model.implicit ? value : 1, model.encoder, j * d);
    return z;
  }
  if (prior) {
    addTo(known, Math.log1p(rated.length) - TYPICAL_LOG_COUNT, prior, 0);
    const mean = new Float64Array(base);
    for (const [j] of rated) addTo(mean, 1 / rated.length, factors, j * d);
    for (let c = 0; c < base; c++) addTo(known, mean[c], prior, (c + 1) * base);
  }
  const gram = new Float64Array(d * d), rhs = new Float64Array(d);
  for (let r = 0; r < base; r++) {
    gram.set(model.ridge.subarray(r * base, (r + 1) * base), r * d);
    gram[r * d + r] += rated.length * model.ratingRidge;
  }
  let squares = 0;
  for (const [j, value] of rated) {
    const start = j * d, doubt = model.itemRidge ? model.itemRidge[j] : 0;
    for (let r = 0; r < base; r++) gram[r * d + r] += doubt;
    const weight = model.implicit ? value : 1;
    const target = model.implicit ? 1 : value;
    const residual = target - offsets[j] - dot(known, factors, start);
    squares += residual * residual;
    for (let a = 0; a < d; a++) {
      const product = weight * factors[start + a];
      rhs[a] += product * residual;
      for (let b = a; b < d; b++) gram[a * d + b] += product * factors[start + b];
    }
  }
  const x = d > base ? averaged(model, gram, rhs, squares, rated.length) : solved(gram, rhs);
  addTo(z, 1, x, 0);
  return z;
}

/** Mean of the solutions without tastes and with each strength of them, by their evidence. */
function averaged(model, gram, rhs, squares, n) {
  const { base, width: d, variance } = model;
  const half = SURE + n / 2, rounding = d * Number.EPSILON;
  const evidence = (left, prior) =>
    Math.log(prior) - half * Math.log(SURE * variance + Math.max(left, 0) / 2);
  const solutions = [], evidences = [];
  for (const [m, penalty] of [0, ...TASTE_PENALTIES].entries()) {
    const size = penalty ? d : base, part = new Float64Array(size * size), logs = [];
    for (let r = 0; r < size; r++) {
      part.set(gram.subarray(r * d, r * d + size), r * size);
      if (r >= base) part[r * size + r] += penalty;
    }
    const right = rhs.subarray(0, size);
    const x = solvedByCholesky(part, right, 0, rounding, logs);
    if (!x) return new Float64Array(d);
    const determinant = logs.slice(base).reduce((sum, log) => sum + log - Math.log(penalty), 0);
    solutions.push(x);
    evidences.push(evidence(squares - dot(x, right, 0), TASTE_PRIOR[m]) - determinant / 2);
  }
  const most = Math.max(...evidences);
  const weights = evidences.map((value) => Math.exp(value - most));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const mean = new Float64Array(d);
  for (const [m, x] of solutions.entries()) {
    for (let c = 0; c < x.length; c++) mean[c] += (weights[m] / total) * x[c];
  }
  return mean;
}

function addTo(sum, factor, values, start) {
  for (let c = 0; c < sum.length; c++) sum[c] += factor * values[start + c];
}

function dot(z, values, start) {
  let sum = 0;
  for (let c = 0; c < z.length; c++) sum += z[c] * values[start + c];
  return sum;
}

function sharesOf(values) {
  const total = values.reduce((sum, value) => sum + value, 0);
  return values.map((value) => value / total);
}

/** The covariance of values a and b of items that have these shares. */
function covariance(shares, a, b) {
  const [c, d] = [dot(shares, a, 0), dot(shares, b, 0)];
  return shares.reduce((sum, share, j) => sum + share * (a[j] - c) * (b[j] - d), 0);
}

/** Columns of features less their means over what people choose, for `Recommender`. */
function centredFeatures({ factors, size, base, width }, chance) {
  const count = width - base, mean = new Float64Array(count);
  const values = new Float64Array(size * count), S = new Float64Array(count * count);
  for (let j = 0; j < size; j++) addTo(mean, chance[j], factors, j * width + base);
  for (let j = 0; j < size; j++) {
    const d = values.subarray(j * count, (j + 1) * count);
    for (let c = 0; c < count; c++) d[c] = factors[j * width + base + c] - mean[c];
    for (let c = 0; c < count; c++) addTo(S.subarray(c * count, (c + 1) * count), chance[j] * d[c], d, 0);
  }
  const variances = Array.from(mean, (_, c) => S[c * count + c]);
  const usual = variances.reduce((sum, v) => sum + v, 0) / count;
  const weights = variances.map((v) => 1 / Math.max(v + RARE * usual, 1e-12));
  const alike = S.reduce((sum, s, i) => sum + weights[Math.floor(i / count)] * s ** 2 * weights[i % count], 0);
  return { count, values, weights, byChance: alike / dot(weights, variances, 0) ** 2 };
}

/** Solve gram x = rhs; what is not definite gets a growing multiple of the identity, as in skdpmf. */
function solved(gram, rhs) {
  const d = rhs.length;
  const rounding = d * Number.EPSILON;
  let largest = 0;
  for (let c = 0; c < d; c++) largest = Math.max(largest, gram[c * d + c]);
  let jitter = 0;
  for (let attempt = 0; attempt < 9; attempt++) {
    const x = solvedByCholesky(gram, rhs, jitter, rounding);
    if (x) return x;
    jitter = Math.max(100 * jitter, 4 * rounding * largest);
  }
  return new Float64Array(d);
}

/**
 * The solution of (gram + jitter I) x = rhs, or null. Of gram the upper triangle is read; `logs`
 * gets the logarithms of the pivots.
 */
function solvedByCholesky(gram, rhs, jitter, rounding, logs = []) {
  const d = rhs.length, U = gram.slice(), x = rhs.slice();
  for (let r = 0; r < d; r++) U[r * d + r] += jitter;
  for (let r = 0; r < d; r++) {
    const pivot = U[r * d + r];
    if (!(pivot > rounding * (gram[r * d + r] + jitter))) return null;
    logs.push(Math.log(pivot));
    const inverse = 1 / Math.sqrt(pivot);
    for (let c = r; c < d; c++) U[r * d + c] *= inverse;
    x[r] *= inverse;
    for (let i = r + 1; i < d; i++) {
      const factor = U[r * d + i];
      x[i] -= factor * x[r];
      for (let c = i; c < d; c++) U[i * d + c] -= factor * U[r * d + c];
    }
  }
  for (let r = d - 1; r >= 0; r--) {
    for (let c = r + 1; c < d; c++) x[r] -= U[r * d + c] * x[c];
    x[r] /= U[r * d + r];
  }
  return x.every(Number.isFinite) ? x : null;
}

/** One visitor: ratings in, the best other items out. */
class Recommender {
  constructor(model) {
    this.model = model;
    this.ratings = new Map();
    this.squares = null; // of the lengths of factors, for similar items
    this.reasons = null; // of the last list: whether tastes or ratings made it, and the genre liked
    this.features = null; // less their means, with their weights and how alike items are by chance
  }

  /** Rate an item; null forgets it. Values beyond the range are clipped, clicks of 0 are none. */
  rate(item, value) {
    const { low, high, implicit } = this.model;
    const clipped = value === null ? null : Math.min(Math.max(value, low), high);
    if (clipped === null || (implicit && clipped === 0)) this.ratings.delete(item);
    else this.ratings.set(item, clipped);
  }

  /** The n best items that are not rated, as pairs [item, score]; of equal ones the first. */
  recommend(n, isWanted = () => true) {
    const { size } = this.model, scores = this.#scores();
    const best = new Best(n);
    for (let j = 0; j < size; j++) if (!this.ratings.has(j) && isWanted(j)) best.add(j, scores[j]);
    return best.pairs;
  }

  /** Scores of all items, and in `reasons` what they follow from, where there are lists. */
  #scores() {
    const { offsets, factors, size, width, base, lists } = this.model;
    const each = (value) => Float64Array.from({ length: size }, (_, j) => value(j));
    const z = foldIn(this.model, this.ratings), t = z.subarray(base);
    const own = each((j) => dot(z, factors, j * width));
    if (!lists) return each((j) => offsets[j] + own[j]);
    const { unit, offsets: popularity } = lists, y = foldIn(lists, this.ratings);
    const added = each((j) => dot(y, lists.factors, j * lists.width));
    const chance = sharesOf(popularity);
    const explained = covariance(chance, popularity, added) ** 2;
    const variances = covariance(chance, popularity, popularity) * covariance(chance, added, added);
    const whole = Math.max(variances, explained);
    const deviation = Math.sqrt(covariance(chance, own, own)) / unit;
    const scale = (TASTES * (whole > 0 ? explained / whole : 1) ** POWER) / Math.hypot(deviation, LEAST_SPREAD);
    const chosen = each((j) => Math.log(popularity[j] + Math.max(added[j], 0)));
    const stated = this.#stated(chance), mean = dot(chance, own, 0);
    const rated = each((j) => (MEANS * offsets[j] + scale * (own[j] - mean)) / unit + stated[j]);
    const decide = covariance(chance, rated, rated) > covariance(chance, chosen, chosen);
    const tastes = each((j) => (scale * dot(t, factors, j * width + base)) / unit + stated[j]);
    this.reasons = {
      taste: added.some((value) => value > 0), ratings: this.ratings.size > 0 && decide,
      genre: this.#likedGenre(chance, tastes),
    };
    return each((j) => chosen[j] + rated[j]);
  }

  /** For each item what the visitor states of its features, where his ratings agree on them. */
  #stated(chance) {
    const { offsets, size, lists } = this.model, n = this.ratings.size;
    this.features ??= centredFeatures(this.model, chance);
    const { count, values, weights, byChance } = this.features;
    const rated = [...this.ratings].sort((a, b) => a[0] - b[0]), t = new Float64Array(count);
    const residuals = rated.map(([j, value]) => (value - offsets[j]) / lists.unit);
    const usual = residuals.reduce((sum, e) => sum + e, 0) / (n + USUAL);
    let squares = 0, lengths = 0;
    for (const [i, [j]] of rated.entries()) {
      const e = residuals[i] - usual, d = values.subarray(j * count, (j + 1) * count);
      const square = e ** 2 * weights.reduce((sum, w, c) => sum + w * d[c] ** 2, 0);
      squares += square;
      lengths += Math.sqrt(square);
      addTo(t, e, d, 0);
    }
    const pairs = lengths ** 2 - squares;
    if (!(pairs > 1e-9 * lengths ** 2)) return new Float64Array(size);
    const cosine = (weights.reduce((sum, w, c) => sum + w * t[c] ** 2, 0) - squares) / pairs;
    const agreement = Math.max(cosine - Math.sqrt((2 * byChance) / (n * (n - 1))), 0);
    for (const [c, w] of weights.entries()) t[c] *= w;
    const said = Float64Array.from({ length: size }, (_, j) => dot(t, values, j * count));
    const logs = lists.offsets.map(Math.log);
    const [deviation, tail] = [said, logs].map((each) => Math.sqrt(covariance(chance, each, each)));
    return said.map((value) => (deviation > 0 ? (STATED * tail * agreement * value) / deviation : 0));
  }

  /** The genre, rated above average, whose items tastes raise most, if they raise them much; or null. */
  #likedGenre(chance, tastes) {
    const mean = dot(chance, tastes, 0), sums = new Map();
    for (const [j, genres] of this.model.genres.entries()) {
      for (const genre of genres) {
        const [sum, total] = sums.get(genre) ?? [0, 0];
        sums.set(genre, [sum + chance[j] * (tastes[j] - mean), total + chance[j]]);
      }
    }
    const best = new Best(1), above = new Map();
    for (const [j, value] of this.ratings) {
      for (const genre of this.model.genres[j]) {
        above.set(genre, (above.get(genre) ?? 0) + value - this.model.offsets[j]);
      }
    }
    for (const [genre, [sum, total]] of sums) if (above.get(genre) > 0) best.add(genre, sum / total);
    const logs = this.model.lists.offsets.map(Math.log);
    const least = WORTH * Math.sqrt(covariance(chance, logs, logs));
    return best.pairs.length && best.pairs[0][1] > least ? best.pairs[0][0] : null;
  }

  /** The rating that `recommend` expects: its score without what lists add. */
  expected(items) {
    const { offsets, factors, width, low, high } = this.model;
    const z = foldIn(this.model, this.ratings);
    const rating = (j) => offsets[j] + dot(z, factors, j * width);
    return items.map((j) => Math.min(Math.max(rating(j), low), high));
  }

  /**
   * Items to begin with: those that most people choose (where the model has lists) or like, and
   * unlike one another. From the best 8n, each time the one that is best and least like the others.
   */
  varied(n, isWanted = () => true) {
    const { offsets, size, lists } = this.model;
    const measure = lists ? lists.offsets : offsets;
    const best = new Best(8 * n);
    for (let j = 0; j < size; j++) if (isWanted(j)) best.add(j, measure[j]);
    const pool = best.pairs.map(([j]) => j);
    const values = pool.map((_, place) => 1 - place / pool.length);
    const likeness = pool.map(() => 0);
    const chosen = [];
    while (chosen.length < Math.min(n, pool.length)) {
      let next = -1;
      for (let c = 0; c < pool.length; c++) {
        if (chosen.includes(pool[c])) continue;
        if (next < 0 || values[c] - likeness[c] > values[next] - likeness[next]) next = c;
      }
      chosen.push(pool[next]);
      for (let c = 0; c < pool.length; c++) {
        likeness[c] = Math.max(likeness[c], this.#likeness(pool[c], pool[next]));
      }
    }
    return chosen;
  }

  /** Between -1 and 1: half the similarity of factors, and half the share of common genres. */
  #likeness(a, b) {
    const [mine, its] = [this.model.genres[a], this.model.genres[b]];
    const common = mine.filter((genre) => its.includes(genre)).length;
    const all = mine.length + its.length - common;
    return (this.#similarity(a)(b) + (all ? common / all : 0)) / 2;
  }

  /** The n nearest items, as pairs [item, similarity above 0], by the released factors. */
  similar(item, n, isWanted = () => true) {
    const best = new Best(n), similarity = this.#similarity(item);
    for (let j = 0; j < this.model.size; j++) {
      if (j !== item && isWanted(j)) best.add(j, similarity(j));
    }
    return best.pairs.filter(([, score]) => score > 0);
  }

  /** The Tanimoto similarity of items to one: as `similar_items` of skdpmf. */
  #similarity(item) {
    const { lists, factors, size, width, base, components } = this.model;
    const [table, row, start, count] = lists?.width
      ? [lists.factors, lists.width, 0, lists.width]
      : [factors, width, base - components, components];
    const at = (j) => table.subarray(j * row + start, j * row + start + count);
    this.squares ??= Float64Array.from({ length: size }, (_, j) => dot(at(j), at(j), 0));
    const own = at(item);
    return (j) => {
      const product = dot(own, table, j * row + start);
      const union = this.squares[item] + this.squares[j] - product;
      return union > 0 ? product / union : 0;
    };
  }
}

/** The n largest scores, as pairs [item, score], the largest first; of equal ones the first. */
class Best {
  constructor(n) {
    this.n = n;
    this.pairs = [];
    this.threshold = -Infinity;
  }

  add(item, score) {
    const { n, pairs } = this;
    if (!(score > this.threshold)) return;
    let place = pairs.length;
    while (place > 0 && pairs[place - 1][1] < score) place--;
    pairs.splice(place, 0, [item, score]);
    if (pairs.length > n) pairs.pop();
    if (pairs.length === n) this.threshold = pairs[n - 1][1];
  }
}

/** The ratings that a visitor can choose from: whole or half steps where they fit. */
function ratingChoices(low, high) {
  const steps = [1, 0.5].map((step) => (high - low) / step);
  const count = steps.find((n) => Number.isInteger(n) && n >= 4 && n <= 10) ?? 10;
  const choice = (i) => Math.min(low + ((high - low) * i) / count, high); // rounding may exceed it
  return Array.from({ length: count + 1 }, (_, i) => choice(i));
}

if (typeof module !== "undefined") {
  module.exports = { ModelError, readModel, describedStatement, Recommender, ratingChoices, Best };
}
