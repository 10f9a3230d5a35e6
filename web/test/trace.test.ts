import assert from "node:assert/strict";
import { test } from "node:test";
import { describeReading, formatChange, formatNumber, type TraceDocument } from "../src/trace.js";

function read(text: string, end: number, unknown: string[] = []): string {
  const offsets = Array.from({ length: end }, (_, index) => [index, index + 1]);
  return describeReading({ source: { text, offsets, unknown, grid: null } } as unknown as TraceDocument).join(" ");
}

test("a source that the model reads completely needs no note", () => {
  assert.equal(read("3 mai 2009", 10), "");
  assert.equal(read("3 mai 2009 \n", 10), "");
  assert.equal(read("e\u0301", 1), "");
  assert.equal(read("", 0), "");
});

test("a source that is cut is reported with both lengths in characters", () => {
  assert.match(read("a".repeat(1411), 1000), /first 1,000 of 1,411 characters/);
  assert.match(read("😀😀😀", 2), /first 2 of 3 characters/);
});

test("characters without a token are named", () => {
  assert.match(read("☃", 1, ["☃"]), /reads “☃” as the unknown token/);
  assert.match(read("☃★", 2, ["☃", "★"]), /reads “☃” and “★” as the unknown token/);
});

test("a number that is rounded to zero has no sign", () => {
  assert.deepEqual([-0.0001, 0.0001, -0, -0.001].map((value) => formatNumber(value)), ["0.000", "0.000", "0.000", "−0.001"]);
  assert.deepEqual([-1.0001, -0.5, -2].map((after) => formatChange(-1, after)), [
    "Log-probability −1.000 → −1.000 (0.000).",
    "Log-probability −1.000 → −0.500 (+0.500).",
    "Log-probability −1.000 → −2.000 (−1.000).",
  ]);
});
