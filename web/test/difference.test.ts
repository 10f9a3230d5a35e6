import assert from "node:assert/strict";
import { test } from "node:test";
import { Matrix } from "../src/arrays.js";
import { align, subtract } from "../src/difference.js";
import type { SelectedMap } from "../src/selection.js";

const pair = (before: string, after: string): string => align([...before], [...after]).map((each) => each.join("-")).join(" ");

test("equal lists are aligned completely", () => {
  assert.equal(pair("abc", "abc"), "0-0 1-1 2-2");
  assert.equal(pair("", "abc"), "");
});

test("what follows a replaced, an inserted or a deleted item is aligned", () => {
  assert.equal(pair("abcd", "abxd"), "0-0 1-1 3-3");
  assert.equal(pair("abcd", "abxcd"), "0-0 1-1 2-3 3-4");
  assert.equal(pair("abcd", "bcd"), "1-0 2-1 3-2");
  assert.equal(pair("2009-05-03", "2009-03-03").split(" ").length, 9);
});

function map(rows: string, values: number[][]): SelectedMap {
  const weights = Matrix.fromRows(values.length, values[0]!.length, (row) => Float64Array.from(values[row]!));
  const spans = [...rows].map((_, index): [number, number] => [index, index + 1]);
  return { weights, axes: { rows: [...rows], columns: [], rowName: "", columnName: "" }, title: "", rowSpans: spans, columnSpans: [] };
}

test("rows of different tokens are not subtracted", () => {
  const [before, after] = [map("abc", [[1, 0], [1, 0], [0, 1]]), map("axbc", [[1, 0], [0.5, 0.5], [0, 1], [0, 1]])];
  const difference = subtract(before, after, align(before.axes.rows, after.axes.rows))!;
  assert.deepEqual(difference.axes.rows, ["a", "b", "c"]);
  assert.deepEqual([...difference.weights.data], [0, 0, -1, 1, 0, 0]);
  assert.deepEqual(difference.rowSpans, [[0, 1], [2, 3], [3, 4]]);
  assert.equal(subtract(before, map("a", [[1]]), []), null);
});
