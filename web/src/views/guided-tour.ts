/** The guided tour: what attention is, on the visitor's own sentence, in six steps. */
import { css, html, type TemplateResult } from "lit";
import { customElement, property, query } from "lit/decorators.js";
import { at } from "../arrays.js";
import { shared } from "../styles.js";
import type { State } from "../state.js";
import { formatPercent, labelToken, toProbability } from "../trace.js";
import { StoreElement } from "./base.js";

interface Stop {
  title: string;
  text: (tour: GuidedTour) => string;
  state: Partial<State>;
  /** What the text is about, in the view. */
  target: string;
}

const STOPS: readonly Stop[] = [
  {
    title: "One token at a time",
    text: (tour) => `The model reads ${tour.source} and writes ${tour.output}, one token after the other. The line under a token is the probability that the model gave it.`,
    state: { tab: "translate", row: null },
    target: "[aria-label='Output tokens']",
  },
  {
    title: "Attention weights",
    text: (tour) => `To write “${tour.token}”, the model attends to the highlighted parts of the source. Point at other output tokens, or move with the arrow keys.`,
    state: { tab: "translate" },
    target: "[aria-label=Alignment]",
  },
  {
    title: "The matrix",
    text: () => "All steps at once: a row for each output token, a column for each part of the source. The stronger the color of a cell, the larger its weight.",
    state: { tab: "attention", view: "matrix", role: "cross" },
    target: "canvas-figure",
  },
  {
    title: "The choice at each step",
    text: (tour) => `At each step, the model gives a probability to every token: here ${tour.choices}. ${tour.search}`,
    state: { tab: "steps" },
    target: "[aria-label='Most likely tokens']",
  },
  {
    title: "The equation",
    text: () => "The context is computed in a few operations: a score for each key, a weight from each score, and the weighted sum of the values. These are the numbers of the model.",
    state: { tab: "equation" },
    target: ".plot",
  },
  {
    title: "Change it",
    text: () => "Weights alone do not explain an output. Choose another token here: the model decodes the rest again, and the tab Compare shows what changed. Undo takes it back.",
    state: { tab: "translate" },
    target: "[aria-label=Alternatives]",
  },
];

@customElement("guided-tour")
export class GuidedTour extends StoreElement {
  static override styles = [
    shared,
    css`
      .spotlight {
        position: fixed; z-index: 4; pointer-events: none; border-radius: 10px; outline: 2.5px solid var(--accent);
        box-shadow: 0 0 0 200vmax rgb(0 0 0 / 0.4); transition: inset 200ms;
      }
      @media (prefers-reduced-motion: reduce) { .spotlight { transition: none; } }
      section {
        position: fixed; inset: auto var(--space-4) var(--space-4) auto; width: min(420px, calc(100vw - 40px)); z-index: 5;
        background: var(--panel); border: 1px solid var(--line-strong); border-radius: var(--radius); padding: var(--space-4); box-shadow: 0 12px 40px rgb(0 0 0 / 0.22);
      }
      section.top { inset-block: var(--space-4) auto; }
      section.start { inset-inline: var(--space-4) auto; }
      .dots { display: flex; gap: 6px; }
      .dots i { width: 8px; height: 8px; border-radius: 4px; background: var(--line-strong); }
      .dots i.now { background: var(--accent); width: 22px; }
      .end { margin-inline-start: auto; }
    `,
  ];

  @property({ type: Number }) stop = 0;
  /** The element that the page was scrolled to. */
  private shown: Element | null = null;
  @query("section") private section!: HTMLElement;
  @query(".spotlight") private spotlight!: HTMLElement;

  get source(): string {
    return this.store.readsImages ? "the image" : `“${this.store.trace?.source.text ?? ""}”`;
  }

  get output(): string {
    const text = this.store.trace?.hypotheses[0]?.text;
    return text ? `“${text}”` : "an empty output";
  }

  private get step() {
    return this.store.trace?.steps[0]?.[this.store.row];
  }

  get token(): string {
    return labelToken(this.step?.token ?? "");
  }

  /** The most likely tokens of the step, with their probabilities. */
  get choices(): string {
    const likely = (this.step?.top ?? []).slice(0, 3).map(({ token, log_prob }) => ({ token, probability: toProbability(log_prob) }));
    const named = likely.filter(({ probability }, index) => index === 0 || probability >= 0.001);
    return named.map(({ token, probability }) => `${formatPercent(probability)} to “${labelToken(token)}”`).join(", ");
  }

  get search(): string {
    const { beam } = this.store.state;
    return beam > 1 ? `Beam search continues the ${beam} most likely outputs and drops the others.` : "Greedy search takes the most likely token.";
  }

  protected override firstUpdated(): void {
    this.go(0);
    this.follow();
    this.shadowRoot!.querySelector<HTMLElement>("button.primary")!.focus();
  }

  protected override render(): TemplateResult {
    const stop = at(STOPS, this.stop);
    return html`<div class="spotlight"></div>
    <section class="stack" role="dialog" aria-label="Guided tour" @keydown=${(event: KeyboardEvent) => event.key === "Escape" && this.close()}>
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

  /** Keep the spotlight on its target, which appears, moves and scrolls, and the text beside it. */
  private readonly follow = (): void => {
    if (!this.isConnected) return;
    const view = (this.getRootNode() as ShadowRoot).querySelector("main")!;
    const target = findDeep(view, at(STOPS, this.stop).target) ?? view;
    if (target !== this.shown) target.scrollIntoView({ block: target.clientHeight > innerHeight / 2 ? "start" : "center" });
    this.shown = target;
    const { left, top, right, bottom } = target.getBoundingClientRect();
    this.spotlight.style.inset = [top, innerWidth - right, innerHeight - bottom, left].map((edge) => `${edge - 6}px`).join(" ");
    const { width, height } = this.section.getBoundingClientRect();
    this.section.classList.toggle("top", bottom > innerHeight - height - 40 && top > height + 40);
    this.section.classList.toggle("start", right > innerWidth - width - 40 && left > width + 40);
    requestAnimationFrame(this.follow);
  };

  private close(): void {
    this.dispatchEvent(new Event("close"));
  }
}

/** Find an element, also inside shadow roots. */
function findDeep(root: ParentNode, selector: string): Element | null {
  const found = root.querySelector(selector);
  if (found) return found;
  for (const { shadowRoot } of root.querySelectorAll("*")) {
    const inner = shadowRoot && findDeep(shadowRoot, selector);
    if (inner) return inner;
  }
  return null;
}
