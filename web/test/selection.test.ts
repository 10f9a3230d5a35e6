import assert from "node:assert/strict";
import { test } from "node:test";
import { Matrix } from "../src/arrays.js";
import { softmax } from "../src/equation.js";
import { layRibbons, type Box } from "../src/ribbons.js";
import { findInformativeStep, rollOut, rollOutCross } from "../src/selection.js";
import type { TraceDocument } from "../src/trace.js";
import { combineWords, findWords, findWritten, joinWord } from "../src/words.js";

const matrix = (...rows: number[][]): Matrix => new Matrix(rows.length, rows[0].length, Float64Array.from(rows.flat()));

test("words start at the mark, at a space, or at each character", () => {
  assert.deepEqual(findWords(["▁foot", "ball", "▁field"]), [[0, 2], [2, 3]]);
  assert.deepEqual(findWords(["3", " ", "m", "a"]), [[0, 1], [1, 4]]);
  assert.deepEqual(findWords(["年", "月"]), [[0, 1], [1, 2]]);
  assert.equal(joinWord(["▁foot", "ball"]), "football");
});

test("rows of a word are averaged, and columns are summed", () => {
  const combined = combineWords(matrix([0.2, 0.3, 0.5], [0.6, 0.4, 0]), [[0, 2]], [[0, 2], [2, 3]]);
  assert.deepEqual([...combined.data], [0.75, 0.25]);
});

test("the rollout of one layer is the average of its weights and the identity", () => {
  assert.deepEqual([...rollOut([matrix([0.5, 0.5], [1, 0])]).data], [0.75, 0.25, 0.5, 0.5]);
  const cross = rollOutCross([], [], [matrix([0.25, 0.75])]);
  assert.deepEqual([...cross.data], [0.25, 0.75]);
});

test("the softmax of hidden slots is 0", () => {
  assert.deepEqual([...softmax(Float64Array.of(0, -Infinity, 0))], [0.5, 0, 0.5]);
  assert.deepEqual([...softmax(Float64Array.of(-Infinity))], [0]);
});

test("written words are what white space separates, in letters, subwords and words", () => {
  const written = (tokens: string[], text: string): string[] => findWritten(tokens, text).map(([start, end]) => tokens.slice(start, end).join("+"));
  assert.deepEqual(written([..."3 mai 2009"], "3 mai 2009"), ["3", " ", "m+a+i", " ", "2+0+0+9"]);
  assert.deepEqual(written([..."2009-05-03"], "2009-05-03"), ["2+0+0+9+-+0+5+-+0+3"]);
  assert.deepEqual(written(["▁Foot", "ball", "▁field", "."], "Football field."), ["▁Foot+ball", "▁field+."]);
  assert.deepEqual(written(["how", "are", "you", "?"], "How are you?"), ["how", "are", "you+?"]);
  assert.deepEqual(written(["a", "cat", "</s>"], "a cat"), ["a", "cat", "</s>"]);
  assert.deepEqual(written(["<unk>", "is", "here"], "☃ is here"), ["<unk>", "is", "here"]);
});

/** A document with one cross-attention. */
function makeTrace(source: string[], output: string[], weights: number[][]): TraceDocument {
  const data = Buffer.from(Float32Array.from(weights.flat()).buffer).toString("base64");
  const entry = { name: "cross", role: "cross", layer: 0, hypothesis: 0, shape: [output.length, source.length], dtype: "float32", data };
  return { source: { tokens: source, grid: null }, hypotheses: [{ tokens: output }], attention: [entry], edits: [] } as unknown as TraceDocument;
}

test("the first screen starts at a token that the source does not contain, with concentrated attention", () => {
  const source = ["3", " ", "m", "a", "i"];
  const weights = [[0.99, 0, 0, 0, 0.01], [0.97, 0.01, 0.01, 0.01, 0], [0, 0.3, 0.4, 0.2, 0.1], [0, 0, 0.1, 0.8, 0.1]];
  assert.equal(findInformativeStep(makeTrace(source, ["3", "-", "0", "5"], weights), 0), 3);
  assert.equal(findInformativeStep(makeTrace(["a", "b"], ["b", "a"], [[0.4, 0.6], [0.9, 0.1]]), 0), 1);
  assert.equal(findInformativeStep(makeTrace(["a"], [], []), 0), 0);
  const edited = { ...makeTrace(source, ["3", "-", "0", "5"], weights), changes: { text: "", tokens: [], score: 0, first_step: 2 } };
  assert.equal(findInformativeStep(edited, 0), 2);
});

const box = (left: number, top: number): Box => ({ left, top, width: 20, height: 10 });

test("the width of a ribbon is its weight, and ribbons of a word are side by side", () => {
  const keys = [box(0, 0), box(30, 0)];
  const ribbons = layRibbons(matrix([0.25, 0.75], [0.01, 0.99]), keys, [box(0, 100), box(30, 100)]);
  assert.deepEqual(ribbons.map(({ row, column, width }) => [row, column, width]), [[0, 0, 5], [0, 1, 15], [1, 1, 19.8]]);
  assert.deepEqual(ribbons.map(({ to }) => to), [[2.5, 100], [12.5, 100], [40, 100]]);
  assert.deepEqual(ribbons[0].from, [10, 10]);
  // The ribbons at the second key are wider than its box together: they stay within it.
  for (const { from } of ribbons.slice(1)) assert.ok(from[0] > 30 && from[0] < 50 && from[1] === 10);
});

test("ribbons leave to the side if the texts are side by side", () => {
  const [ribbon] = layRibbons(matrix([1]), [box(0, 0)], [box(200, 40)]);
  assert.deepEqual([ribbon.from, ribbon.to], [[20, 5], [200, 45]]);
});
