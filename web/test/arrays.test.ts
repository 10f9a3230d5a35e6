import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeArray, splitMatrices, toFloat } from "../src/arrays.js";

const encode = (bytes: Uint8Array): string => Buffer.from(bytes).toString("base64");

test("half-precision floats: normal, subnormal, negative, infinite", () => {
  assert.equal(toFloat(0x3c00), 1);
  assert.equal(toFloat(0x3555), 0.333251953125);
  assert.equal(toFloat(0x0001), 2 ** -24);
  assert.equal(toFloat(0xc000), -2);
  assert.equal(toFloat(0x7c00), Infinity);
  assert.ok(Number.isNaN(toFloat(0x7e00)));
});

test("every type of array is decoded as little-endian", () => {
  const float32 = new Uint8Array(new Float32Array([0.5, -2]).buffer);
  assert.deepEqual([...decodeArray({ shape: [2], dtype: "float32", data: encode(float32) }).data], [0.5, -2]);
  const int64 = new Uint8Array(new BigInt64Array([7n, -1n]).buffer);
  assert.deepEqual([...decodeArray({ shape: [2], dtype: "int64", data: encode(int64) }).data], [7, -1]);
  assert.deepEqual([...decodeArray({ shape: [2], dtype: "bool", data: encode(Uint8Array.of(0, 1)) }).data], [0, 1]);
  const half = decodeArray({ shape: [1, 1], dtype: "float16", data: encode(Uint8Array.of(0x00, 0x38)) });
  assert.equal(splitMatrices(half)[0].at(0, 0), 0.5);
});

test("an array with the wrong number of bytes is rejected", () => {
  assert.throws(() => decodeArray({ shape: [3], dtype: "float32", data: encode(Uint8Array.of(1)) }), /instead of 12/);
});
