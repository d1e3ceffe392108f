"use strict";
// The page around model.js. Titles are strangers' text: they are set as text, never as markup,
// which the policy of index.html enforces too.

const FOUND = 20, BEST = 10;
const element = (id) => document.getElementById(id);
let visitor = null; // the Recommender
let texts = []; // titles as they are searched

function made(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, properties);
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
  element("about").hidden = element("visitor").hidden = true;
  visitor = null;
  say(`Reading ${name} …`);
  try {
    const model = await readModel(await content);
    visitor = new Recommender(model);
    texts = model.titles.map(searchable);
    showStatement(model.statement);
    const kind = model.implicit ? "clicks" : `ratings from ${model.low} to ${model.high}`;
    say(`${name}: ${model.name}, ${model.size.toLocaleString("en")} items, ${kind}.`);
    element("search").value = "";
    element("about").hidden = element("visitor").hidden = false;
    element("rated").replaceChildren();
    showFound();
    showAnswer();
  } catch (error) {
    const known = error instanceof ModelError;
    const trouble = known ? `was refused: ${error.message}` : `cannot be read (${error.name})`;
    say(`${name} ${trouble}.`, true);
  }
}

function showStatement(statement) {
  element("privacy").replaceChildren(...describedStatement(statement).map((s) => made("p", s)));
  const parts = {
    "The guarantee holds only if": statement.assumptions,
    "Not covered": statement.not_covered,
    Notes: statement.notes,
  };
  const lists = Object.entries(parts).flatMap(([heading, lines]) => {
    const list = made("ul", "");
    list.append(...lines.map((line) => made("li", line)));
    return lines.length ? [made("h3", heading), list] : [];
  });
  element("statement").replaceChildren(...lists);
}

// An item with its rating to choose, and its score where there is one.
function line(item, score = "") {
  const { titles, low, high, implicit } = visitor.model;
  const choices = implicit ? [1] : ratingChoices(low, high);
  const select = made("select", "", { ariaLabel: `Your rating of ${titles[item]}` });
  select.dataset.item = item;
  select.append(made("option", "not rated", { value: "" }));
  for (const choice of choices) {
    const text = implicit ? "liked" : String(Number(choice.toPrecision(6)));
    select.append(made("option", text, { value: String(choice) }));
  }
  select.value = String(visitor.ratings.get(item) ?? "");
  const li = made("li", "");
  li.append(made("bdi", titles[item]), made("span", score, { className: "score" }), select);
  return li;
}

function showFound() {
  const query = element("search").value;
  const items = foundItems(texts, query, FOUND);
  element("found").replaceChildren(...items.map((item) => line(item)));
  const number = items.length === FOUND ? `the first ${FOUND}` : items.length;
  element("found-status").textContent = query.trim() ? `Found: ${number}.` : "Type part of a title.";
}

function showAnswer() {
  const start = performance.now();
  const best = visitor.recommend(BEST);
  const took = performance.now() - start;
  const { low, high, implicit } = visitor.model;
  const shown = (score) => Math.min(Math.max(score, low), high).toFixed(1);
  element("best").replaceChildren(
    ...best.map(([item, score]) => line(item, implicit ? "" : shown(score))),
  );
  const count = visitor.ratings.size;
  element("best-status").textContent =
    (count ? `From ${count} of your ratings` : "Without ratings: what suits most people") +
    `, in ${took.toFixed(1)} ms on this device.` +
    (implicit ? "" : " The numbers are expected ratings.");
  element("forget").hidden = count === 0;
}

function changed(select) {
  const item = Number(select.dataset.item);
  visitor.rate(item, select.value === "" ? null : Number(select.value));
  const same = `select[data-item="${item}"]`;
  const rated = element("rated");
  // Only what changed: to make a list of hundred ratings anew takes 30 ms.
  if (!visitor.ratings.has(item)) rated.querySelector(same)?.closest("li").remove();
  else if (!rated.querySelector(same)) rated.prepend(line(item));
  for (const other of element("visitor").querySelectorAll(same)) other.value = select.value;
  showAnswer();
  // Where its line has gone, the keyboard goes to the rating, or to the heading above it.
  if (!select.isConnected) (rated.querySelector(same) ?? element("rated-heading")).focus();
}

element("file").addEventListener("change", ({ target }) => {
  const file = target.files[0];
  if (file) show(file.name, file.arrayBuffer());
});
element("search").addEventListener("input", showFound);
element("visitor").addEventListener("change", ({ target }) => {
  if (target.matches("select")) changed(target);
});
element("forget").addEventListener("click", () => {
  visitor.ratings.clear();
  element("rated").replaceChildren();
  showFound();
  showAnswer();
  element("rated-heading").focus();
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
  else if (!isName) say("?model= must be the name of a file in this page's folder, no path.", true);
  else if (wanted !== null && isServed) say(`There is no file ${name} beside this page.`, true);
  else say("Choose a model file.");
}

start();
