import assert from "node:assert/strict";
import { test } from "node:test";
import { Matrix } from "../src/arrays.js";
import type { Row, Stage } from "../src/equation.js";
import { chooseSlots, mixRows, summarize } from "../src/flow.js";

const range = (count: number): number[] => [...Array(count).keys()];

function createStage(name: string, values: number[], columns = 1): Stage {
  const matrix = new Matrix(values.length / columns, columns, Float64Array.from(values));
  return { name, formula: name, note: "", values: matrix, inputs: [], total: { formula: "Z", values: Float64Array.of(1) }, isRead: false, isShare: false, curve: null };
}

const createRow = (stages: Stage[], weights: number[]): Row => ({ stages, weights: Float64Array.from(weights), context: null });

test("keys with the largest weights are shown, in the chosen order", () => {
  const weights = new Float64Array(40).fill(0.01);
  weights[30] = 0.4;
  weights[7] = 0.2;
  assert.deepEqual(chooseSlots(weights, "weight", 12).slice(0, 3), [30, 7, 0]);
  assert.deepEqual(chooseSlots(weights, "position", 3), [0, 7, 30]);
  assert.deepEqual(chooseSlots(weights, "position", 500), range(40));
});

test("all keys are shown if one row for the others would save little", () => {
  assert.deepEqual(chooseSlots(new Float64Array(14), "weight", 12), range(14));
  assert.equal(chooseSlots(new Float64Array(15), "weight", 12).length, 12);
});

test("an overview of heads has the stages with one number for each key, and the weighted values", () => {
  const row = createRow([createStage("key", [1, 2, 3, 4], 2), createStage("score", [1, 2]), createStage("value", [1, 2, 3, 4], 2)], [0.5, 0.5]);
  assert.deepEqual(summarize(row).stages.map((each) => each.name), ["score", "value"]);
});

test("numbers move between two computations; a stage that is new and masked scores do not", () => {
  const before = createRow([createStage("score", [0, 2])], [0, 1]);
  const after = createRow([createStage("score", [4, -Infinity]), createStage("mask", [4, 4])], [1, 0]);
  const mixed = mixRows(before, after, 0.25);
  assert.deepEqual(mixed.stages.map((each) => [...each.values.data]), [[1, -Infinity], [4, 4]]);
  assert.deepEqual([...mixed.weights], [0.25, 0.75]);
});
