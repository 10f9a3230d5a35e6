import assert from "node:assert/strict";
import { test } from "node:test";
import { Matrix } from "../src/arrays.js";
import { softmax } from "../src/equation.js";
import { rollOut, rollOutCross } from "../src/selection.js";
import { combineWords, findWords, joinWord } from "../src/words.js";

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
