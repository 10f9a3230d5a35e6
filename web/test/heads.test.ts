import assert from "node:assert/strict";
import { test } from "node:test";
import { summarizeEffects, type HeadEffect, type HeadEffects } from "../src/heads.js";

const effect = (head: number, change: number, text = "a"): HeadEffect => ({ attention: "cross.0", role: "cross", layer: 0, head, change, text });
const result = (...heads: HeadEffect[]): HeadEffects => ({ text: "a", score: -1, heads });

test("heads are sorted by the size of their effect, and idle ones are last", () => {
  const summaries = summarizeEffects([result(effect(0, 0.2), effect(1, -3), effect(2, 0.001), effect(3, 0, "b"))]);
  assert.deepEqual(summaries.map(({ head, isIdle }) => [head, isIdle]), [[1, false], [0, false], [3, false], [2, true]]);
  assert.equal(summaries[0]!.name, "Cross-attention, head 2");
});

test("a head that changes any of several outputs is not idle, and its change is the average", () => {
  const summaries = summarizeEffects([result(effect(0, 0), effect(1, 0)), result(effect(1, 0), effect(0, -2, "b"))]);
  assert.deepEqual(summaries.map(({ head, change, changed, isIdle }) => [head, change, changed, isIdle]), [[0, -1, 1, false], [1, 0, 0, true]]);
});

test("a head that an edit has ablated is last, and is not idle", () => {
  const off = { kind: "ablate_head", attention: "cross.0", head: 0 };
  const summaries = summarizeEffects([result(effect(0, 0), effect(1, 0), effect(2, -1))], [off]);
  assert.deepEqual(summaries.map(({ head, isIdle, isOff }) => [head, isIdle, isOff]), [[2, false, false], [1, true, false], [0, false, true]]);
  assert.equal(summaries[0]!.where, "this example with the edits above");
});

test("changes of opposite signs do not cancel in the order of the heads", () => {
  const summaries = summarizeEffects([result(effect(0, 1), effect(1, 0.2)), result(effect(0, -1), effect(1, 0.2))]);
  assert.deepEqual(summaries.map(({ head, change, size, isIdle }) => [head, change, size, isIdle]), [[0, 0, 1, false], [1, 0.2, 0.2, false]]);
});
