/** The base of all views: they are drawn again when the store or the theme changes. */
import { LitElement, type PropertyValues, type TemplateResult } from "lit";
import { property, state } from "lit/decorators.js";
import type { ResultPath, ResultRequest, Streamed } from "../client.js";
import type { Figure } from "../figures.js";
import { shared } from "../styles.js";
import { renderFailure } from "./controls.js";
import type { Store } from "../store.js";

export abstract class StoreElement extends LitElement {
  static override styles = [shared];

  @property({ attribute: false }) store!: Store;
  private readonly redraw = (): void => this.requestUpdate();

  override connectedCallback(): void {
    super.connectedCallback();
    this.store.addEventListener("change", this.redraw);
    addEventListener("resize", this.redraw);
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.store.removeEventListener("change", this.redraw);
    removeEventListener("resize", this.redraw);
  }
}

/** A tab of the page. */
export abstract class View extends StoreElement {
  private readonly widths = new Map<string, number>();
  /** What the view has requested besides the trace of the store. */
  protected requested: unknown = null;
  /** Why this request has failed; empty if it has not. */
  @state() protected failure = "";
  /** How much of the present stream is done, from 0 to 1. */
  @state() protected progress = 0;
  private controller = new AbortController();
  private readonly requestAgain = (): void => {
    if (!this.failure) return;
    this.requested = null;
    this.requestUpdate();
  };

  override connectedCallback(): void {
    super.connectedCallback();
    this.store.addEventListener("retry", this.requestAgain);
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.store.removeEventListener("retry", this.requestAgain);
    this.stop();
  }

  /** Ignore what was requested. A server that computes it stops. */
  protected stop(): void {
    this.controller.abort();
    this.requested = null;
    this.failure = "";
  }

  /**
   * Request something once for each key. A result is ignored if there is a newer request, or none, when it arrives:
   * the view shows the last result until then.
   */
  protected load<T>(key: unknown, send: () => Promise<T>, receive: (result: T) => void): void {
    if (key === this.requested) return;
    this.requested = key;
    this.failure = "";
    send().then(
      (result) => {
        if (this.requested === key) receive(result);
      },
      (reason: Error) => {
        if (this.requested === key) this.failure = reason.message;
      },
    );
  }

  /** Request a stream once for each key. It stops if there is a newer request, or if the view is closed. */
  protected stream<T extends object>(key: unknown, open: (signal: AbortSignal) => AsyncIterable<Streamed<T>>, receive: (part: T) => void): void {
    if (key === this.requested) return;
    this.controller.abort();
    this.progress = 0;
    const { signal } = (this.controller = new AbortController());
    const read = async (): Promise<void> => {
      for await (const part of open(signal)) {
        if (signal.aborted) return;
        if ("progress" in part) this.progress = part.progress;
        else receive(part);
      }
    };
    this.load(key, read, () => this.requestUpdate());
  }

  /** Compute a result once, and keep it in the store. */
  protected computeResult(path: ResultPath, request: ResultRequest): void {
    const { store } = this;
    const key = JSON.stringify(request);
    if (store.results.has(key)) this.stop();
    else
      this.stream(key, (signal) => store.client.streamResult(path, request, signal), ({ result }) => {
        store.results.set(key, result);
        store.announce(`Computed: ${path}`);
        store.notify();
      });
  }

  /** The failure of the last request, with a button that repeats it. */
  protected renderFailure(): TemplateResult | string {
    return this.failure && renderFailure(this.failure, this.requestAgain);
  }

  /** Return the width of an element of this view. Before it is drawn, return an estimate, and draw again afterwards. */
  protected measureWidth(selector: string, estimate: number): number {
    const width = this.shadowRoot?.querySelector(selector)?.clientWidth ?? estimate;
    this.widths.set(selector, width);
    return width;
  }

  protected override updated(_changed: PropertyValues): void {
    for (const [selector, width] of this.widths) {
      const actual = this.shadowRoot?.querySelector(selector)?.clientWidth ?? width;
      if (actual !== width) this.requestUpdate();
    }
    // What can be exported may have changed.
    this.dispatchEvent(new Event("drawn", { bubbles: true, composed: true }));
  }

  /** Return what PNG and SVG export, with this size of text in pixels; null if the view has no drawing. */
  createPaperFigure(_fontSize: number): Figure | null {
    return null;
  }

  /** What JSON exports. */
  get data(): unknown {
    return this.store.trace;
  }
}
