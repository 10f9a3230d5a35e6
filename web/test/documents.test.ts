import assert from "node:assert/strict";
import { test } from "node:test";
import { Documents } from "../src/documents.js";

/** Requests that the test answers or fails. */
class Server {
  readonly answers: ((text: string) => void)[] = [];
  readonly failures: ((reason: Error) => void)[] = [];

  readonly send = (signal: AbortSignal): Promise<string> =>
    new Promise((resolve, reject) => {
      this.answers.push(resolve);
      this.failures.push(reject);
      signal.addEventListener("abort", () => reject(new Error("aborted")));
    });
}

const signal = (): AbortSignal => new AbortController().signal;

test("a document is requested once, also while it is pending", async () => {
  const [documents, server] = [new Documents<string>(2), new Server()];
  const first = documents.fetch("a", signal(), server.send);
  const second = documents.fetch("a", signal(), server.send);
  server.answers[0]("text");
  assert.equal(await first, "text");
  assert.equal(await second, "text");
  assert.equal(await documents.fetch("a", signal(), server.send), "text");
  assert.equal(server.answers.length, 1);
});

test("a request that was aborted is sent again at once", async () => {
  const [documents, server, controller] = [new Documents<string>(2), new Server(), new AbortController()];
  const aborted = documents.fetch("a", controller.signal, server.send);
  controller.abort();
  const repeated = documents.fetch("a", signal(), server.send);
  await assert.rejects(aborted, /aborted/);
  server.answers[1]("text");
  assert.equal(await repeated, "text");
  assert.equal(await documents.fetch("a", signal(), server.send), "text");
  assert.equal(server.answers.length, 2);
});

test("a document stays when its signal is aborted later", async () => {
  const [documents, server, controller] = [new Documents<string>(2), new Server(), new AbortController()];
  const first = documents.fetch("a", controller.signal, server.send);
  server.answers[0]("text");
  await first;
  controller.abort();
  assert.equal(await documents.fetch("a", signal(), server.send), "text");
});

test("a request that has failed is sent again", async () => {
  const [documents, server] = [new Documents<string>(2), new Server()];
  const failed = documents.fetch("a", signal(), server.send);
  server.failures[0](new Error("no server"));
  await assert.rejects(failed, /no server/);
  void documents.fetch("a", signal(), server.send);
  assert.equal(server.answers.length, 2);
});

test("the least recently used document is removed", async () => {
  const [documents, server] = [new Documents<string>(2), new Server()];
  for (const key of ["a", "b", "a", "c"]) void documents.fetch(key, signal(), server.send);
  assert.equal(documents.size, 2);
  void documents.fetch("a", signal(), server.send);
  assert.equal(server.answers.length, 3);
  void documents.fetch("b", signal(), server.send);
  assert.equal(server.answers.length, 4);
});
