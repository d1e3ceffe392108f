"use strict";
// The page around model.js and titles.js. Titles are strangers' text: they are set as text, never
// as markup, which the policy of index.html enforces too.

const NEEDED = 3, LIST = 12, ROW = 10, ROWS = 3, MOST_GENRES = 24;
const LIKED = 0.625; // above this share of the scale an item is liked: 3.5 on a scale of 1 to 5
const SVG = document.querySelector("svg").namespaceURI;
const element = (id) => document.getElementById(id);
let visitor = null; // the Recommender
let index = null; // the TitleIndex, from the first search on
let known = []; // names and years of the items
let starters = []; // what is shown before there is a list
let shown = new Set(); // all starters so far
let genre = null; // the one that is chosen
let isListInSight = false;
let groups = 0; // of radio buttons: each has a name of its own

function made(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, properties);
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function say(text, isTrouble = false) {
  element("status").textContent = text;
  element("status").className = isTrouble ? "trouble" : "";
}

// From here on the browser itself refuses every request of this page. A policy can be added, and
// none can be taken away again before the page is loaded anew.
function lockNetwork() {
  const policy = { httpEquiv: "Content-Security-Policy", content: "default-src 'none'" };
  document.head.append(Object.assign(document.createElement("meta"), policy));
}

async function show(name, content) {
  for (const id of ["chooser", "visitor", "about", "people"]) element(id).hidden = true;
  visitor = index = genre = null;
  say(`Reading ${name} …`);
  try {
    const model = await readModel(await content);
    visitor = new Recommender(model);
    known = model.titles.map(readTitle);
    showStatement(model.statement);
    const kind = model.implicit ? "likes" : `ratings from ${model.low} to ${model.high}`;
    const size = model.size.toLocaleString("en");
    element("model").textContent = `Model: ${name}, ${model.name}, ${size} titles, ${kind}.`;
    for (const id of ["best", "because", "rated", "found"]) element(id).replaceChildren();
    for (const id of ["visitor", "about", "people"]) element(id).hidden = false;
    say("");
    showGenres();
    startAnew();
    element("search").value = "";
    showFound();
  } catch (error) {
    visitor = null;
    for (const id of ["visitor", "about", "people"]) element(id).hidden = true;
    const isKnown = error instanceof ModelError;
    const trouble = isKnown ? `was refused: ${error.message}` : `cannot be read (${error.name})`;
    askForFile(`${name} ${trouble}.`);
  }
}

function askForFile(trouble = "") {
  element("chooser").hidden = false;
  say(trouble, trouble !== "");
}

function showStatement(statement) {
  element("short").replaceChildren(...describedStatement(statement).map((s) => made("p", s)));
  const parts = {
    "The guarantee holds only if": statement.assumptions,
    "Not covered": statement.not_covered,
    Notes: statement.notes,
  };
  const lists = Object.entries(parts).flatMap(([heading, lines]) => {
    const list = made("ul", "");
    list.append(...lines.map((line) => made("li", line)));
    return lines.length ? [made("h4", heading), list] : [];
  });
  element("statement").replaceChildren(...lists);
}

// Posters: a title's colours and picture follow from its text and its first genre alone.

/** Numbers from 0 to 1 that follow from a text. */
function chances(text) {
  let state = 2166136261;
  for (let i = 0; i < text.length; i++) state = Math.imul(state ^ text.charCodeAt(i), 16777619);
  return () => {
    state = Math.imul(state ^ (state >>> 15), 2246822519) + 0x9e3779b9;
    const mixed = Math.imul(state ^ (state >>> 13), 3266489917);
    return ((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32;
  };
}

const many = (n, make) => Array.from({ length: n }, (_, i) => make(i));
const circle = (cx, cy, r, kind = "fill") => svg("circle", { cx, cy, r, class: kind });
const area = (d, kind = "fill") => svg("path", { d, class: kind });

// Each draws within a square of 100, from a function that gives chances.
const PICTURES = [
  function sun(next) {
    const x = 30 + 40 * next();
    return [circle(x, 52, 34), ...many(4, (i) => area(`M0 ${56 + 8 * i}h100v${2 + i}h-100z`, "back"))];
  },
  function rings(next) {
    const x = 20 + 60 * next(), y = 30 + 40 * next();
    return [circle(x, y, 5), ...many(5, (i) => circle(x, y, 13 + 11 * i, "line"))];
  },
  function peaks(next) {
    const x = 25 + 20 * next();
    return [circle(78 - x / 3, 24, 9), area(`M${x - 55} 100L${x} 30l55 70z`),
      area(`M${x} 100L${x + 38} 48l50 52z`, "half")];
  },
  function beams(next) {
    const x = 20 + 60 * next();
    return many(6, (i) => area(`M${x} 100L${-60 + 38 * i} -10h19z`, i % 2 ? "half" : "fill"));
  },
  function skyline(next) {
    return many(9, (i) => {
      const height = 25 + 60 * next();
      return area(`M${-2 + 12 * i} 100v${-height}h9v${height}z`, next() < 0.4 ? "half" : "fill");
    });
  },
  function waves(next) {
    const shift = -40 * next();
    return many(5, (i) => area(`M${shift - 6 * i} ${24 + 17 * i}${"q10 -15 20 0t20 0".repeat(5)}`, "line"));
  },
  function moon(next) {
    const x = 40 + 25 * next();
    return [circle(x, 48, 28), circle(x + 14, 40, 25, "back"),
      ...many(7, () => circle(100 * next(), 90 * next(), 1 + next()))];
  },
  function blocks(next) {
    return many(9, (i) => {
      const x = 34 * (i % 3), y = 34 * Math.floor(i / 3), kind = next() < 0.5 ? "fill" : "half";
      const turn = Math.floor(4 * next());
      const corner = area("M-16 16v-32a32 32 0 0 1 32 32z", kind);
      corner.setAttribute("transform", `translate(${x + 16} ${y + 16}) rotate(${90 * turn})`);
      return corner;
    });
  },
  function squares(next) {
    const turn = 90 * next();
    return many(4, (i) => svg("rect", { x: 8 + 11 * i, y: 8 + 11 * i, width: 84 - 22 * i, height: 84 - 22 * i,
      transform: `rotate(${turn / 4 + (turn - 45) * i / 3} 50 50)`, class: i === 3 ? "fill" : "line" }));
  },
  function dots(next) {
    const x = 8 * next(), far = 20 + 60 * next();
    return many(42, (i) => {
      const cx = 8 + 14 * (i % 7) + x, cy = 8 + 16 * Math.floor(i / 7);
      return circle(cx, cy, Math.max(1, 7 - Math.hypot(cx - far, cy - 50) / 9));
    });
  },
];

function poster(item) {
  const { name, year } = known[item];
  const genres = visitor.model.genres[item];
  const next = chances(name + year);
  const box = made("div", "", { className: `poster ink${Math.floor(5 * next())}` });
  const place = genres.length ? allGenres().indexOf(genres[0]) : 2.6 * next();
  box.style.setProperty("--hue", Math.round(137.5 * place + 40 * next()) % 360);
  if (next() < 0.35) box.classList.add("upside");
  const words = name.split(/\s+/), longest = Math.max(...words.map((word) => word.length));
  // in hundredths of the width: that the longest word fits, and all of them
  const size = Math.max(8, Math.min(17, 125 / longest, 62 / Math.sqrt(name.length)));
  box.style.setProperty("--size", `${size.toFixed(1)}cqi`);
  const picture = PICTURES[Math.floor(PICTURES.length * next())](next);
  const art = svg("svg", { viewBox: "0 0 100 100", "aria-hidden": true, class: "art" }, ...picture);
  const text = made("div", "", { className: "text" });
  const facts = [year, genres.slice(0, 2).join(", ")].filter(Boolean).join(" · ");
  text.append(made("bdi", name, { className: "name" }), made("span", facts, { className: "facts" }));
  box.append(art, text);
  return box;
}

// Cards: a poster with stars, or a heart, to click.

/** How a screen reader names an item. */
function spoken(item) {
  const { name, year } = known[item];
  return year ? `${name}, ${year}` : name;
}

function card(item) {
  const li = made("li", "", { className: "card" });
  li.dataset.item = item;
  const clear = made("button", "×", { type: "button", className: "clear" });
  clear.setAttribute("aria-label", `Remove your rating of ${spoken(item)}`);
  li.append(poster(item), visitor.model.implicit ? heart(item) : stars(item), clear);
  paint(li);
  return li;
}

function heart(item) {
  const button = made("button", "Like", { type: "button", className: "heart" });
  button.setAttribute("aria-label", `Like ${spoken(item)}`);
  return button;
}

/**
 * Radio buttons under stars: whole ones, or halves where there are more than six values to choose
 * from. An odd number of halves begins with a dot, the lowest value.
 */
function stars(item) {
  const { low, high } = visitor.model;
  const choices = ratingChoices(low, high);
  const group = made("div", "", { className: "stars" });
  group.setAttribute("role", "radiogroup");
  group.setAttribute("aria-label", `Your rating of ${spoken(item)}`);
  groups += 1;
  const each = choices.length > 6 ? 2 : 1;
  const dot = each === 2 && choices.length % 2 === 1;
  for (let c = 0; c < choices.length;) {
    const isDot = dot && c === 0, n = isDot ? 1 : each;
    const star = made("span", "", { className: isDot ? "dot" : "star" });
    for (const choice of choices.slice(c, c + n)) {
      const shownValue = String(Number(choice.toPrecision(6)));
      const input = made("input", "", { type: "radio", name: `stars${groups}`, value: choice });
      input.setAttribute("aria-label", `${shownValue} of ${high}`);
      star.append(input);
    }
    group.append(star);
    c += n;
  }
  return group;
}

/** Fill the stars up to a value. */
function fillStars(group, value) {
  for (const star of group.children) {
    const values = [...star.children].map((input) => Number(input.value));
    const full = values.filter((own) => value !== undefined && own <= value).length / values.length;
    star.style.setProperty("--full", `${100 * full}%`);
  }
}

/** Show an item's rating on its card. */
function paint(li) {
  const item = Number(li.dataset.item), value = visitor.ratings.get(item);
  li.classList.toggle("is-rated", value !== undefined);
  li.querySelector(".clear").hidden = value === undefined;
  li.querySelector(".heart")?.setAttribute("aria-pressed", value !== undefined);
  const group = li.querySelector(".stars");
  if (!group) return;
  for (const input of group.querySelectorAll("input")) input.checked = Number(input.value) === value;
  fillStars(group, value);
}

/**
 * Show items as cards. The card that is being rated keeps its place and its focus, so that the
 * next star can be reached; it goes at the next change elsewhere.
 */
function fill(list, items, active = null) {
  const before = [...list.children];
  const old = new Map(before.map((li) => [Number(li.dataset.item), li]));
  const place = before.indexOf(active);
  let wanted = items;
  if (place >= 0) {
    const own = Number(active.dataset.item);
    wanted = items.filter((item) => item !== own);
    if (wanted.length >= before.length) wanted.length = before.length - 1;
    wanted.splice(Math.min(place, wanted.length), 0, own);
  }
  arrange(list, wanted.map((item) => old.get(item) ?? card(item)), active);
}

/**
 * Make `nodes` the children of `parent`. The one that holds the focus is never moved, as it would
 * lose it, and those that are in their place are not touched: that is most of the time.
 */
function arrange(parent, nodes, active) {
  for (const node of [...parent.children]) if (!nodes.includes(node)) node.remove();
  let place = parent.firstElementChild;
  for (const node of nodes) {
    const isFixed = node === place || (active && node.contains(active));
    if (isFixed) place = node.nextElementSibling;
    else parent.insertBefore(node, place);
  }
}

// The sections

let genreList = null;
/** Genres of the catalogue, the most frequent first. */
function allGenres() {
  if (genreList?.of === visitor.model) return genreList.names;
  const counts = new Map();
  for (const own of visitor.model.genres) for (const g of own) counts.set(g, (counts.get(g) ?? 0) + 1);
  const names = [...counts].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  genreList = { of: visitor.model, names };
  return names;
}

function showGenres() {
  const chip = (name, text) => {
    const button = made("button", text, { type: "button", className: "chip" });
    button.setAttribute("aria-pressed", name === genre);
    button.addEventListener("click", () => {
      genre = name;
      for (const other of button.parentNode.children) other.setAttribute("aria-pressed", other === button);
      element("search").value = "";
      showFound();
      startAnew();
      news(`${element("best-heading").textContent}: ${titlesIn("best")}`);
    });
    return button;
  };
  const names = allGenres().slice(0, MOST_GENRES);
  element("genres").replaceChildren(chip(null, "All"), ...names.map((name) => chip(name, name)));
  element("genres").hidden = names.length < 2;
}

const isWanted = (item) => genre === null || visitor.model.genres[item].includes(genre);
const needed = () => Math.min(NEEDED, visitor.model.size);
const stillNeeded = () => Math.max(0, needed() - visitor.ratings.size);

function startAnew() {
  shown = new Set();
  showOthers();
}

/** Other titles to begin with; from the first again when all have been shown. */
function showOthers() {
  const isNew = (item) => isWanted(item) && !shown.has(item) && !visitor.ratings.has(item);
  starters = visitor.varied(LIST, isNew);
  if (!starters.length) {
    shown = new Set();
    starters = visitor.varied(LIST, isWanted);
  }
  for (const item of starters) shown.add(item);
  showAnswer();
}

/** Work out all lists anew; `active` is the card that is being rated. */
function showAnswer(active = null) {
  const start = performance.now();
  const left = stillNeeded(), isList = left === 0;
  const best = isList ? visitor.recommend(LIST, isWanted).map(([item]) => item) : starters;
  const took = performance.now() - start;
  const { implicit } = visitor.model, { reasons } = visitor;
  const what = genre === null ? "" : ` in ${genre}`;
  const act = implicit ? "Like" : "Rate";
  element("best-heading").textContent = isList ? `For you${what}` : `Which of these${what} do you know?`;
  const more = `${left} ${left < needed() ? "more" : left === 1 ? "title" : "titles"}`;
  const choices = reasons?.taste ? "Chosen by people with your taste" : "Popular with everybody";
  const taste = reasons?.genre ? `, and you rated ${reasons.genre} high` : reasons?.ratings ? " and by how you rated" : "";
  element("best-hint").textContent = isList
    ? `${reasons ? choices + taste : "The best come first"}.` +
      `${implicit ? "" : " Each shows the rating that you would give, by the model."} Every further ` +
      `${implicit ? "like" : "rating"} makes it better.`
    : `${act} ${more}, and your own list appears here. Until then you see what suits most people.`;
  fill(element("best"), best, active);
  showExpected(isList && !implicit);
  element("others").hidden = isList;
  showBecause(isList, active);
  element("mine").hidden = visitor.ratings.size === 0;
  element("progress").textContent = isList ? countOf(visitor.ratings.size) : `${act} ${more} for your list`;
  element("see").hidden = !isList;
  showTray();
  element("tray").style.setProperty("--done", `${(100 * (needed() - left)) / needed()}%`);
  element("speed").textContent = isList ? `Your last list took ${took.toFixed(1)} ms on this device.` : "";
}

/** The tray leads to the list, wherever that is not in sight. */
function showTray() {
  element("tray").hidden = isListInSight && stillNeeded() === 0;
}

function countOf(n) {
  const word = visitor.model.implicit ? "like" : "rating";
  return `${n} ${word}${n === 1 ? "" : "s"}`;
}

function showExpected(isShown) {
  const cards = [...element("best").children];
  const values = isShown ? visitor.expected(cards.map((li) => Number(li.dataset.item))) : [];
  for (const [place, li] of cards.entries()) {
    li.querySelector(".expected")?.remove();
    if (!isShown || li.classList.contains("is-rated")) continue;
    const label = made("span", values[place].toFixed(1), { className: "expected" });
    label.prepend(made("span", "We expect your rating to be ", { className: "unseen" }));
    li.querySelector(".poster").append(label);
  }
}

/** Rows of what is near the items that were liked last. */
function showBecause(isList, active) {
  const { low, high, implicit } = visitor.model;
  const likes = (value) => implicit || value > low + LIKED * (high - low);
  const liked = [...visitor.ratings].filter(([, value]) => likes(value)).map(([item]) => item).reverse();
  const rows = element("because");
  const old = new Map([...rows.children].map((row) => [Number(row.dataset.of), row]));
  const busy = [...rows.children].find((row) => active && row.contains(active));
  const sources = isList ? liked.slice(0, ROWS) : [];
  if (busy && !sources.includes(Number(busy.dataset.of))) sources.push(Number(busy.dataset.of));
  const wanted = sources.flatMap((item) => {
    const near = visitor.similar(item, ROW, (j) => isWanted(j) && !visitor.ratings.has(j));
    const row = old.get(item) ?? becauseRow(item);
    if (near.length < 2 && row !== busy) return [];
    fill(row.querySelector("ul"), near.map(([j]) => j), active);
    return [row];
  });
  arrange(rows, wanted, active);
}

function becauseRow(item) {
  const row = made("section", ""), heading = made("h2", "Because you liked ", { id: `because${item}` });
  heading.append(made("bdi", known[item].name));
  row.dataset.of = item;
  row.setAttribute("aria-labelledby", heading.id);
  row.append(heading, made("ul", "", { className: "shelf" }));
  return row;
}

function showFound() {
  const query = element("search").value.trim();
  element("results").hidden = query === "";
  element("browse").hidden = query !== "";
  if (query === "") return;
  index ??= new TitleIndex(visitor.model.titles);
  const items = index.find(query, LIST);
  fill(element("found"), items);
  element("nothing").hidden = items.length > 0;
  news(items.length ? `Found: ${titlesIn("found")}` : element("nothing").textContent);
}

function titlesIn(list) {
  const names = [...element(list).children].map((li) => known[li.dataset.item].name);
  return `${names.slice(0, 3).join("; ")}${names.length > 3 ? `, and ${names.length - 3} more` : ""}.`;
}

function news(text) {
  element("news").textContent = text;
}

/** Rate the item of a card, null for no rating any more, and show what follows. */
function rate(li, value) {
  const item = Number(li.dataset.item), wasList = stillNeeded() === 0;
  visitor.rate(item, value);
  const rated = element("rated"), own = rated.querySelector(`[data-item="${item}"]`);
  const isRated = visitor.ratings.has(item);
  // Only what changed: to make a list of hundred ratings anew takes 30 ms.
  if (isRated && !own) rated.prepend(card(item));
  if (isRated && !own) rated.scrollLeft = 0;
  const next = own?.nextElementSibling ?? own?.previousElementSibling;
  if (!isRated) own?.remove();
  for (const other of document.querySelectorAll(`[data-item="${item}"]`)) paint(other);
  showAnswer(li);
  // Where the button has gone, the keyboard goes to what is next.
  if (value === null && li.isConnected) li.querySelector("input, .heart").focus();
  else if (value === null) (next?.querySelector(".clear") ?? element("best-heading")).focus();
  const left = stillNeeded();
  const then = left === 0 ? `${wasList ? "Your list" : "Your list is ready"}: ${titlesIn("best")}`
    : `${left} more for your list.`;
  const words = visitor.model.implicit ? "liked" : `${Number(value?.toPrecision(6))} of ${visitor.model.high}`;
  news(`${known[item].name}: ${value === null ? "no rating any more" : words}. ${then}`);
}

element("visitor").addEventListener("change", ({ target }) => {
  if (target.type === "radio") rate(target.closest(".card"), Number(target.value));
});
element("visitor").addEventListener("click", ({ target }) => {
  const li = target.closest(".card");
  if (target.matches(".clear")) rate(li, null);
  if (target.matches(".heart")) rate(li, visitor.ratings.has(Number(li.dataset.item)) ? null : 1);
});
element("visitor").addEventListener("pointerover", ({ target, pointerType }) => {
  if (target.type === "radio" && pointerType === "mouse") {
    fillStars(target.closest(".stars"), Number(target.value));
  }
});
element("visitor").addEventListener("pointerout", ({ target }) => {
  if (target.type === "radio") paint(target.closest(".card"));
});
element("search").addEventListener("input", showFound);
element("others").addEventListener("click", () => {
  showOthers();
  news(`Others: ${titlesIn("best")}`);
  element("best-heading").focus();
});
element("see").addEventListener("click", () => {
  element("search").value = "";
  showFound();
  element("best-heading").focus({ preventScroll: true });
  element("best-heading").scrollIntoView();
});
new IntersectionObserver((changes) => {
  isListInSight = changes.at(-1).isIntersecting;
  if (visitor) showTray();
}).observe(element("best"));
element("forget").addEventListener("click", () => {
  visitor.ratings.clear();
  element("rated").replaceChildren();
  for (const li of document.querySelectorAll(".card")) paint(li);
  startAnew();
  news("All your ratings are gone.");
  element("best-heading").focus();
});

element("file").addEventListener("change", ({ target }) => {
  const file = target.files[0];
  target.value = ""; // so that the same file can be chosen again
  if (file) show(file.name, file.arrayBuffer());
});
element("other").addEventListener("click", () => element("file").click());

const dialog = element("privacy");
element("badge").addEventListener("click", () => dialog.showModal());
element("close").addEventListener("click", () => dialog.close());
element("print").addEventListener("click", () => print());
dialog.addEventListener("click", ({ target }) => {
  if (target === dialog) dialog.close(); // outside of its content
});
// On paper nothing can be unfolded, and what lies above the page is cut at its end.
addEventListener("beforeprint", () => {
  if (!dialog.open) return;
  dialog.querySelector("details").open = true;
  dialog.close();
  dialog.show();
});
addEventListener("afterprint", () => {
  if (!dialog.open) return;
  dialog.close();
  dialog.showModal();
});

async function fetched(name) {
  try {
    const response = await fetch(name, { credentials: "omit", redirect: "error" });
    return response.ok ? await response.arrayBuffer() : null;
  } catch {
    return null;
  }
}

// ?model=NAME: a file of the page's own folder; without it model.skdpmf, if there is one.
async function start() {
  const wanted = new URLSearchParams(location.search).get("model");
  const name = wanted ?? "model.skdpmf";
  const isName = /^[\w-][\w.-]*$/.test(name);
  const isServed = location.protocol !== "file:";
  const content = isName && isServed ? await fetched(name) : null;
  lockNetwork();
  if (visitor) return; // who has chosen a file meanwhile
  if (content) await show(name, content);
  else if (!isName) askForFile("?model= must be the name of a file in this page's folder, no path.");
  else if (wanted !== null && isServed) askForFile(`There is no file ${name} beside this page.`);
  else askForFile();
}

start();
