import assert from "node:assert/strict";
import { test } from "node:test";
import { INITIAL, readFragment, writeFragment, type State } from "../src/state.js";

test("a state survives the URL", () => {
  const state: State = {
    ...INITIAL,
    tab: "equation",
    text: "</script> & 3 مايو #=%",
    edits: [{ kind: "force_token", step: 2, token: 7 }],
    layer: "rollout",
    head: 3,
    words: true,
    rows: [1, 2],
    pairs: 1000,
    sort: "-length",
    only: ["error", "unknown"],
    longest: 20,
    toggles: { scaling: false, temperature: 0.5, masked: [3], hard: true },
    order: "weight",
    tail: true,
    stage: 4,
  };
  assert.deepEqual(readFragment(`#${writeFragment(state)}`), state);
});

test("the initial state has an empty fragment", () => {
  assert.equal(writeFragment(INITIAL), "");
});

test("values that are not valid are ignored", () => {
  assert.deepEqual(readFragment("#tab=nowhere&beam=1000&row=-1&pairs=100000&sort=source&only=[%22short%22]&shortest=-1&edits={&layer=%22first%22&toggles=3&order=length&stage=-1&tail=1"), INITIAL);
});
