/** The guided tour: what attention is, on the visitor's own sentence, in six steps. */
import { css, html, type TemplateResult } from "lit";
import { customElement, property } from "lit/decorators.js";
import { at } from "../arrays.js";
import { shared } from "../styles.js";
import type { State } from "../state.js";
import { labelToken } from "../trace.js";
import { StoreElement } from "./base.js";

interface Stop {
  title: string;
  text: (tour: GuidedTour) => string;
  state: Partial<State>;
}

const STOPS: readonly Stop[] = [
  {
    title: "One token at a time",
    text: (tour) => `The model reads “${tour.source}” and writes “${tour.output}”, one token after the other. The line under a token is the probability that the model gave it.`,
    state: { tab: "translate", row: null },
  },
  {
    title: "Where it looks",
    text: (tour) => `To write “${tour.token}”, the model does not read the whole source equally. The source tokens that it attends to light up. Point at other output tokens, or move with the arrow keys.`,
    state: { tab: "translate" },
  },
  {
    title: "The matrix",
    text: () => "All steps at once: a row for each output token, a column for each source token. Each row is a distribution: it sums to 1. The stronger the color of a cell, the larger its weight.",
    state: { tab: "attention", view: "matrix", role: "cross" },
  },
  {
    title: "The choice at each step",
    text: (tour) => `At each step, the model gives a probability to every token. Here it had ${tour.choices} likely choices for “${tour.token}”. Beam search keeps several outputs, and prunes the others.`,
    state: { tab: "steps" },
  },
  {
    title: "The equation",
    text: () => "A weight is computed in a few operations: a score for each key, a softmax, a weighted sum. These are the real numbers of the model, and the page computes them again to check them.",
    state: { tab: "equation" },
  },
  {
    title: "Change it",
    text: () => "Weights alone do not explain an output. Choose another token here: the model decodes the rest again, and the tab Compare shows what changed. Undo takes it back.",
    state: { tab: "translate" },
  },
];

@customElement("guided-tour")
export class GuidedTour extends StoreElement {
  static override styles = [
    shared,
    css`
      section {
        position: fixed; inset-block-end: var(--space-4); inset-inline-end: var(--space-4); width: min(420px, calc(100vw - 40px)); z-index: 5;
        background: var(--panel); border: 1px solid var(--line-strong); border-radius: var(--radius); padding: var(--space-4); box-shadow: 0 12px 40px rgb(0 0 0 / 0.22);
      }
      .dots { display: flex; gap: 6px; }
      .dots i { width: 8px; height: 8px; border-radius: 4px; background: var(--line-strong); }
      .dots i.now { background: var(--accent); width: 22px; }
      .end { margin-inline-start: auto; }
    `,
  ];

  @property({ type: Number }) stop = 0;

  get source(): string {
    return this.store.trace?.source.text ?? "";
  }

  get output(): string {
    return this.store.trace?.hypotheses[0]?.text ?? "";
  }

  private get step() {
    return this.store.trace?.steps[0]?.[this.store.row];
  }

  get token(): string {
    return labelToken(this.step?.token ?? "");
  }

  get choices(): number {
    // The perplexity of the step: how many equally likely tokens have this entropy.
    return Math.max(1, Math.round(Math.exp(this.step?.entropy ?? 0)));
  }

  protected override firstUpdated(): void {
    this.go(0);
    this.shadowRoot!.querySelector<HTMLElement>("button.primary")!.focus();
  }

  protected override render(): TemplateResult {
    const stop = at(STOPS, this.stop);
    return html`<section class="stack" role="dialog" aria-label="Guided tour" @keydown=${(event: KeyboardEvent) => event.key === "Escape" && this.close()}>
      <div aria-live="polite" class="stack">
        <h2>${this.stop + 1}. ${stop.title}</h2>
        <p>${stop.text(this)}</p>
      </div>
      <div class="row">
        <span class="dots" aria-hidden="true">${STOPS.map((_, index) => html`<i class=${index === this.stop ? "now" : ""}></i>`)}</span>
        <button type="button" class="quiet end" @click=${this.close}>End</button>
        <button type="button" ?disabled=${this.stop === 0} @click=${() => this.go(this.stop - 1)}>Back</button>
        <button type="button" class="primary" @click=${() => (this.stop + 1 < STOPS.length ? this.go(this.stop + 1) : this.close())}>${this.stop + 1 < STOPS.length ? "Next" : "Done"}</button>
      </div>
    </section>`;
  }

  private go(stop: number): void {
    this.stop = stop;
    this.store.show(at(STOPS, stop).state);
  }

  private close(): void {
    this.dispatchEvent(new Event("close"));
  }
}
