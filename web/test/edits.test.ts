import assert from "node:assert/strict";
import { test } from "node:test";
import { describeEdits } from "../src/edits.js";

test("an edit names the word at its position, after the edits before it", () => {
  const edits = [
    { kind: "delete_source", position: 0, unit: "word" },
    { kind: "replace_source", position: 0, unit: "word", text: "juin 1" },
    { kind: "mask_source", position: 1, unit: "word" },
    { kind: "mask_source", position: 2, unit: "token" },
  ];
  assert.deepEqual(describeEdits(edits, "3 mai 2009", null), ["“3” deleted", "“mai” → “juin 1”", "“1” masked", "source token 3 masked"]);
});

test("an edit of attention names its step and its heads", () => {
  const target = { attention: "decoder.attention", step: 1 };
  const edits = [
    { kind: "uniform_row", ...target, head: null },
    { kind: "mask_keys", ...target, step: null, head: 2, keys: [1] },
    { kind: "ablate_head", attention: "decoder.attention", head: 0 },
  ];
  assert.deepEqual(describeEdits(edits, "3 mai 2009", null), ["uniform weights at step 2, all heads", "1 key masked at all steps, head 3", "head 1 ablated"]);
});
