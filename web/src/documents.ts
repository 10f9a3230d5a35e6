/** Documents by their request, each computed once. The least recently used are removed. */
export class Documents<T> {
  private readonly entries = new Map<string, Entry<T>>();

  constructor(private readonly most: number) {}

  get size(): number {
    return this.entries.size;
  }

  /** Return a document. A request that has failed or was aborted is sent again. */
  fetch(key: string, signal: AbortSignal, send: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const known = this.entries.get(key);
    const entry = known && !(known.isPending && known.signal.aborted) ? known : this.start(key, signal, send);
    this.entries.delete(key);
    this.entries.set(key, entry);
    for (const oldest of this.entries.keys()) {
      if (this.entries.size <= this.most) break;
      this.entries.delete(oldest);
    }
    return entry.promise;
  }

  private start(key: string, signal: AbortSignal, send: (signal: AbortSignal) => Promise<T>): Entry<T> {
    const entry = { promise: send(signal), signal, isPending: true };
    entry.promise.then(
      () => (entry.isPending = false),
      () => {
        // The same request may have been sent again.
        if (this.entries.get(key) === entry) this.entries.delete(key);
      },
    );
    return entry;
  }
}

interface Entry<T> {
  promise: Promise<T>;
  signal: AbortSignal;
  isPending: boolean;
}
