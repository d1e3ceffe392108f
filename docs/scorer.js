// How the search ranks what it finds: how to do a job comes before why it is done so.
const WEIGHTS = [
  [/^(getting-started|load|evaluation|publish|serve|refresh)$/, 3],
  [/^(budgets|protection|attacks|choosing|what-is-public|item-item|browser)$/, 2.5],
  [/^(guide|auto_examples)\/|^(api|distributed|benchmarks\/index)$/, 1.5],
  [/^(decisions|benchmarks)\/|^changes$/, 0.3],
];

// The share of the question's words that a title has.
function shareInTitle(title) {
  const asked = new URLSearchParams(location.search).get("q") ?? "";
  const words = splitQuery(asked.toLowerCase()).filter((word) => !stopwords.has(word));
  const stemmer = new Stemmer();
  const stems = new Set(splitQuery(title.toLowerCase()).map((word) => stemmer.stemWord(word)));
  return words.filter((word) => stems.has(stemmer.stemWord(word))).length / (words.length || 1);
}

// The numbers are those of Sphinx, but for `score`.
var Scorer = {
  score: ([name, title, , , score, , kind]) => {
    const found = WEIGHTS.find(([pages]) => pages.test(name));
    const weight = kind === "object" ? 0.5 : found ? found[1] : 1;
    return score * weight * (1 + shareInTitle(title));
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
