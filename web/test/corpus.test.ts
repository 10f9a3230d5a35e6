import assert from "node:assert/strict";
import { test } from "node:test";
import type { Corpus, CorpusRow } from "../src/client.js";
import { listCases, markDifferences, selects, selectsSource, sortCases, type Filter } from "../src/corpus.js";

const ALL: Filter = { only: [], shortest: null, longest: null };

const row = (index: number, changes: Partial<CorpusRow> = {}): CorpusRow => ({
  index, source: "s", prediction: "p", reference: "r", correct: true, unknown: [], score: -1, confidence: 0.5, length: 10, entropy: 0.5, coverage: 1, ...changes,
});

const corpus = (...rows: CorpusRow[]): Corpus => ({ total: 3, size: 3, most: 3, split: "test", pairs: "a", rows });

const PRESENT = corpus(row(0, { correct: false, length: 5, entropy: null }), row(1, { confidence: 0.9, unknown: ["☃"] }), row(2, { confidence: 0.1, length: 20 }));
const OTHER = corpus(row(0), row(1, { prediction: "q" }));
const CASES = listCases(PRESENT, [PRESENT, OTHER], 3);

const pick = (filter: Partial<Filter>): number[] => CASES.filter((each) => selects({ ...ALL, ...filter }, each)).map((each) => each.row.index);
const sort = (by: string): number[] => sortCases(CASES, by).map((each) => each.row.index);

test("pairs are selected by errors, disagreement, unknown characters and length", () => {
  assert.deepEqual(pick({}), [0, 1, 2]);
  assert.deepEqual(pick({ only: ["error"] }), [0]);
  assert.deepEqual(pick({ only: ["disagreement"] }), [1]);
  assert.deepEqual(pick({ only: ["unknown"] }), [1]);
  assert.deepEqual(pick({ only: ["error", "unknown"] }), []);
  assert.deepEqual(pick({ shortest: 10 }), [1, 2]);
  assert.deepEqual(pick({ shortest: 10, longest: 10 }), [1]);
});

test("metrics are computed on pairs that are selected by their sources, not by their predictions", () => {
  const selected = CASES.filter((each) => selectsSource({ only: ["error", "disagreement"], shortest: null, longest: 10 }, each));
  assert.deepEqual(selected.map((each) => each.row.index), [0, 1]);
});

test("pairs are sorted by a column in both directions, and those without a value are last", () => {
  assert.deepEqual(sort(""), [0, 1, 2]);
  assert.deepEqual(sort("confidence"), [2, 0, 1]);
  assert.deepEqual(sort("-length"), [2, 1, 0]);
  assert.deepEqual(sort("entropy"), [1, 2, 0]);
  assert.deepEqual(sort("-entropy"), [1, 2, 0]);
});

test("the number of pairs that are listed is limited", () => {
  assert.equal(listCases(PRESENT, [PRESENT], 2).length, 2);
});

/** Return the prediction with its differences in brackets. */
const mark = (prediction: string, reference: string): string =>
  markDifferences(prediction, reference).map(({ text, isDifferent }) => (isDifferent ? `[${text}]` : text)).join("");

test("the words of a prediction that differ from the reference are marked, or the characters of a word", () => {
  assert.equal(mark("2009-09-03", "2009-05-03"), "2009-0[9]-03");
  assert.equal(mark("1949-09-22", "1949-10-22"), "1949-[09]-22");
  assert.equal(mark("a large circle below it", "a small circle above it"), "a [large] circle [below] it");
  assert.equal(mark("aaa", "aa"), "aa[a]");
  assert.equal(mark("x😀z", "x😁z"), "x[😀]z");
  assert.equal(mark("a b", "a b"), "a b");
});

test("what a prediction lacks is marked by an empty part", () => {
  assert.equal(mark("ac", "abc"), "a[]c");
  assert.equal(mark("a c", "a b c"), "a []c");
  assert.equal(mark("", "a"), "[]");
});
