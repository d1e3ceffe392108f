"use strict";
// Titles as people read, write and mistype them, without the page: what page.js and the tests use.

const ARTICLES = "The|A|An|Le|La|Les|L'|Un|Une|El|Los|Las|Il|Lo|Gli|Der|Die|Das|Ein|Eine";
const TURNED = new RegExp(`^(.+), (${ARTICLES})$`, "i");
const LETTERS = { ß: "ss", æ: "ae", œ: "oe", ø: "o", ł: "l", đ: "d", ı: "i", "&": " and " };
const LONGEST_TITLE = 300, LONGEST_WORD = 32, MOST_WORDS = 12;

/** The name to show and the year: "Matrix, The (1999)" is The Matrix, of 1999. */
function readTitle(title) {
  const text = title.slice(0, LONGEST_TITLE).trim() || "untitled";
  const year = text.match(/\((\d{4})\)$/)?.[1] ?? "";
  let name = year ? text.slice(0, -6).trim() : text;
  name = name.replace(/( \([^()]*\))+$/, "") || text; // names in other languages
  const [, rest, article] = name.match(TURNED) ?? [];
  if (article) name = `${article}${article.endsWith("'") ? "" : " "}${rest}`;
  return { name, year };
}

/** The words of a text as they are compared: without case, accents and apostrophes. */
function wordsOf(text) {
  const plain = text.normalize("NFD").replace(/[\p{M}'’]/gu, "").toLowerCase();
  return plain.replace(/[ßæœøłđı&]/g, (c) => LETTERS[c]).split(/[^\p{L}\p{N}]+/u).filter(Boolean);
}

/** How many mistakes a word may have. */
function allowedMistakes(word) {
  return [0, 0, 0, 1, 1, 1, 2, 2, 2][word.length] ?? 3;
}

/** A bit for each letter that a word has: a letter that another word lacks is a mistake at least. */
function lettersOf(word) {
  let letters = 0;
  for (let i = 0; i < word.length; i++) letters |= 1 << (word.charCodeAt(i) & 31);
  return letters;
}

function isFarFrom(letters, others, most) {
  let missing = letters & ~others;
  for (let left = most; missing; left--) {
    if (left === 0) return true;
    missing &= missing - 1;
  }
  return false;
}

const rows = Array.from({ length: 3 }, () => new Uint8Array(LONGEST_WORD + 1));

/**
 * Mistakes (letters that are wrong, missing, too many or exchanged) that make `word` of what was
 * typed; `open`: or the beginning of `word`. Infinity if there are more than `most`.
 */
function mistakes(typed, word, most, open) {
  const n = Math.min(word.length, typed.length + most);
  if (typed.length > LONGEST_WORD - most || n < typed.length - most) return Infinity;
  let [before, above, row] = rows;
  for (let j = 0; j <= n; j++) above[j] = j;
  for (let i = 1; i <= typed.length; i++) {
    let least = (row[0] = i);
    for (let j = 1; j <= n; j++) {
      const same = typed[i - 1] === word[j - 1];
      let cost = Math.min(above[j - 1] + (same ? 0 : 1), above[j] + 1, row[j - 1] + 1);
      const isExchanged = i > 1 && j > 1 && typed[i - 1] === word[j - 2] && typed[i - 2] === word[j - 1];
      if (isExchanged) cost = Math.min(cost, before[j - 2] + 1);
      row[j] = cost;
      if (cost < least) least = cost;
    }
    if (least > most) return Infinity;
    [before, above, row] = [above, row, before];
  }
  let found = n === word.length ? above[n] : Infinity;
  if (open) for (let j = 1; j <= n; j++) found = Math.min(found, above[j]);
  return found <= most ? found : Infinity;
}

/** Titles by their words, and a search that forgives. */
class TitleIndex {
  constructor(titles) {
    this.titles = titles;
    this.words = []; // all different ones
    this.letters = []; // of each word
    this.places = []; // the titles of each word
    const numbers = new Map();
    this.phrases = titles.map((title, j) => {
      const words = wordsOf(title);
      for (const word of new Set(words)) {
        if (!numbers.has(word)) {
          numbers.set(word, this.words.length);
          this.words.push(word);
          this.letters.push(lettersOf(word));
          this.places.push([]);
        }
        this.places[numbers.get(word)].push(j);
      }
      return words.join(" ");
    });
  }

  /**
   * The n titles that fit best: those that hold all words, whole or in part. Where there are none,
   * words with mistakes count as well, and titles that lack some of the words.
   */
  find(query, n) {
    const words = wordsOf(query).slice(0, MOST_WORDS);
    if (!words.length) return this.#withSigns(query.trim(), n);
    for (const forgives of [false, true]) {
      const { fits, held } = this.#fits(words, forgives);
      const least = forgives ? Math.ceil(words.length / 2) : words.length;
      const best = new Best(n), phrase = words.join(" ");
      for (let j = 0; j < fits.length; j++) {
        if (held[j] < least) continue;
        const title = this.phrases[j];
        const more = title.startsWith(phrase) ? (title.length === phrase.length ? 2 : 1) : 0;
        best.add(j, held[j] + (fits[j] + more) / words.length - title.length / 1000);
      }
      const most = Math.max(0, ...best.pairs.map(([j]) => held[j]));
      if (most) return best.pairs.map(([j]) => j).filter((j) => held[j] === most);
    }
    return [];
  }

  /** Titles that hold a text of signs alone, such as "???". */
  #withSigns(text, n) {
    const found = [];
    for (let j = 0; text && j < this.titles.length && found.length < n; j++) {
      if (this.titles[j].includes(text)) found.push(j);
    }
    return found;
  }

  /** How well each title fits, the sum over words, and how many of the words it holds. */
  #fits(words, forgives) {
    const size = this.titles.length;
    const fits = new Float64Array(size), held = new Uint8Array(size);
    for (const word of words) {
      const part = new Float64Array(size);
      const most = allowedMistakes(word), letters = lettersOf(word);
      for (let w = 0; w < this.words.length; w++) {
        const fit = this.#fit(word, letters, w, forgives ? most : 0);
        if (fit > 0) for (const j of this.places[w]) part[j] = Math.max(part[j], fit);
      }
      // "spiderman" is in Spider-Man
      if (forgives && word.length > 4) {
        this.joined ??= this.phrases.map((phrase) => phrase.replaceAll(" ", ""));
        for (let j = 0; j < size; j++) if (!part[j] && this.joined[j].includes(word)) part[j] = 0.5;
      }
      for (let j = 0; j < size; j++) {
        fits[j] += part[j];
        held[j] += part[j] > 0;
      }
    }
    return { fits, held };
  }

  /** Between 0, not at all, and 1, for the same word. */
  #fit(typed, letters, w, most) {
    const word = this.words[w];
    if (word.startsWith(typed)) return word.length === typed.length ? 1 : 0.8;
    if (typed.length > 2 && word.includes(typed)) return 0.6;
    if (most === 0 || isFarFrom(letters, this.letters[w], most)) return 0;
    const found = mistakes(typed, word, most, typed.length > 3);
    return found === Infinity ? 0 : 0.5 - 0.1 * found;
  }
}

if (typeof module !== "undefined") {
  globalThis.Best = require("./model.js").Best;
  module.exports = { readTitle, wordsOf, TitleIndex };
}
