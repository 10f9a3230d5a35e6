import assert from "node:assert/strict";
import { test } from "node:test";
import { compareLists, describeEdits, findMasked, mergeEdit } from "../src/edits.js";
import type { Edit, TraceDocument } from "../src/trace.js";

test("an edit names the word at its position, after the edits before it", () => {
  const edits = [
    { kind: "delete_source", position: 0, unit: "word" },
    { kind: "replace_source", position: 0, unit: "word", text: "juin 1" },
    { kind: "mask_source", position: 1, unit: "word" },
    { kind: "mask_source", position: 2, unit: "token" },
  ];
  assert.deepEqual(describeEdits(edits, "3 mai 2009", null), ["“3” deleted", "“mai” → “juin 1”", "“1” hidden", "source token 3 hidden"]);
});

test("an edit names the token at its position, after the edits before it", () => {
  const remove = { kind: "delete_source", position: 1, unit: "token" };
  const hide = { kind: "mask_source", position: 1, unit: "token" };
  assert.deepEqual(describeEdits([remove, hide], "abc", null, ["a", "b", "c"]), ["“b” (source token 2) deleted", "“c” (source token 2) hidden"]);
  const replace = { kind: "replace_source", position: 0, unit: "word", text: "xyz" };
  assert.deepEqual(describeEdits([replace, hide], "abc", null, ["a", "b", "c"]), ["“abc” → “xyz”", "source token 2 hidden"]);
});

test("an edit of attention names its step and its heads", () => {
  const target = { attention: "decoder.attention", step: 1 };
  const edits = [
    { kind: "uniform_row", ...target, head: null },
    { kind: "mask_keys", ...target, step: null, head: 2, keys: [1] },
    { kind: "ablate_head", attention: "decoder.attention", head: 0 },
  ];
  assert.deepEqual(describeEdits(edits, "3 mai 2009", null), ["uniform weights at step 2, all heads", "1 key masked at all steps, head 3", "head 1 off"]);
});

test("an edit of attention names the role, the layer and the head, as far as there are several", () => {
  const mechanism = (role: string, layer: number, heads: number) => ({ role, layer, heads });
  const trace = (mechanisms: object): TraceDocument => ({ mechanisms, source: { tokens: ["a", "b"], grid: null }, hypotheses: [{ tokens: ["c"] }] }) as unknown as TraceDocument;
  const transformer = trace({ one: mechanism("encoder-self", 0, 4), two: mechanism("encoder-self", 1, 4), cross: mechanism("cross", 0, 4), self: mechanism("decoder-self", 0, 1) });
  const describe = (edit: Edit, document: TraceDocument): string => describeEdits([edit], "a b", document)[0];
  assert.equal(describe({ kind: "ablate_head", attention: "two", head: 2 }, transformer), "encoder self-attention layer 2, head 3 off");
  assert.equal(describe({ kind: "mask_keys", attention: "cross", head: null, step: 0, keys: [1] }, transformer), "“b” masked at step 1, cross-attention, all heads");
  assert.equal(describe({ kind: "mask_keys", attention: "self", head: null, step: null, keys: [0] }, transformer), "“<s>” masked at all steps, decoder self-attention");
  assert.equal(describe({ kind: "ablate_head", attention: "only", head: 0 }, trace({ only: mechanism("cross", 0, 1) })), "attention off");
});

test("the same edit twice is one edit, and an edit replaces those that it overrides", () => {
  const add = (...edits: Edit[]): Edit[] => edits.reduce<Edit[]>(mergeEdit, []);
  const mask = { kind: "mask_source", position: 1, unit: "word" };
  const remove = { kind: "delete_source", position: 1, unit: "word" };
  const off = { kind: "ablate_head", attention: "x", head: 0 };
  assert.deepEqual(add(mask, off, mask, off), [mask, off]);
  assert.deepEqual(add(remove, remove), [remove, remove]);
  assert.deepEqual(add(mask, remove, mask), [mask, remove, mask]);
  const set = (step: number, weights: number[]): Edit => ({ kind: "set_row", attention: "x", head: null, step, weights });
  const uniform = { kind: "uniform_row", attention: "x", head: null, step: 0 };
  assert.deepEqual(add(set(0, [1, 0]), set(1, [1, 0]), set(0, [0, 1])), [set(1, [1, 0]), set(0, [0, 1])]);
  assert.deepEqual(add(set(0, [1, 0]), uniform), [uniform]);
  const force = (step: number, token: string): Edit => ({ kind: "force_token", step, token });
  assert.deepEqual(add(force(0, "a"), force(3, "b"), force(1, "c")), [force(0, "a"), force(1, "c")]);
});

test("masked words are found after the edits that follow", () => {
  const find = (text: string, edits: Edit[]): number[] => {
    const tokens = [...text];
    const source = { text, tokens, offsets: tokens.map((_, index) => [index, index + 1]) };
    return [...findMasked({ edits, source } as unknown as TraceDocument)];
  };
  const mask = (position: number): Edit => ({ kind: "mask_source", position, unit: "word" });
  const replace = (position: number, text: string): Edit => ({ kind: "replace_source", position, unit: "word", text });
  assert.deepEqual(find("3 mai 9", [mask(1)]), [2, 3, 4]);
  assert.deepEqual(find("le 3 mai", [mask(1), replace(0, "le 3")]), [5, 6, 7]);
  assert.deepEqual(find("mai 9", [mask(1), { kind: "delete_source", position: 0, unit: "word" }]), [0, 1, 2]);
  assert.deepEqual(find("3 juin", [mask(1), replace(1, "juin")]), []);
  assert.deepEqual(find("abc", [{ kind: "mask_source", position: 2, unit: "token" }, { kind: "delete_source", position: 0, unit: "token" }]), [1]);
});

test("differences of two lists are the elements outside their longest common subsequence", () => {
  assert.deepEqual(compareLists([..."2009-05"], [..."2009-06-1"]), [
    [false, false, false, false, false, false, true],
    [false, false, false, false, false, false, true, true, true],
  ]);
  assert.deepEqual(compareLists([], ["a"]), [[], [true]]);
});
