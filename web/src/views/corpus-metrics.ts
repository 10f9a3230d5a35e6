/** Metrics of the models on the pairs of the corpus, with 95 % intervals, and the differences from the first model. */
import { css, html, type TemplateResult } from "lit";
import { customElement, property, state } from "lit/decorators.js";
import { at } from "../arrays.js";
import type { CorpusMetric, CorpusMetrics } from "../client.js";
import type { MetricsRequest } from "../requests.js";
import { shared } from "../styles.js";
import { View } from "./base.js";

@customElement("corpus-metrics")
export class CorpusMetricsElement extends View {
  static override styles = [
    shared,
    css`
      .metrics { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: var(--space-2) var(--space-5); }
      table { max-width: 900px; }
      th:first-child { color: var(--ink); font-size: var(--size-2); }
      th, td { padding: 5px var(--space-3) 5px 0; }
      tbody tr:last-child td { border-bottom: 0; }
      .plot { width: 45%; }
      .track { position: relative; height: 14px; margin-inline: 6px; }
      .track i { position: absolute; top: 5px; height: 4px; border-radius: 2px; background: var(--line-strong); }
      .track b { position: absolute; top: 1px; width: 12px; height: 12px; margin-inline-start: -6px; border-radius: 50%; background: var(--muted); }
      tr[aria-current="true"] .track b { background: var(--accent); }
      tr[aria-current="true"] .track i { background: color-mix(in srgb, var(--accent) 45%, var(--panel)); }
      .value { white-space: nowrap; }
      td:first-child { min-width: 5.5em; overflow-wrap: anywhere; }
      @media (max-width: 700px) { .plot { display: none; } .value { white-space: normal; } th, td { padding-inline-end: var(--space-2); } }
    `,
  ];

  /** What to evaluate; null while pairs are predicted. */
  @property({ attribute: false }) request: MetricsRequest | null = null;
  @state() private metrics: CorpusMetrics | null = null;

  protected override willUpdate(): void {
    if (!this.request) return;
    const { request, store } = this;
    const key = JSON.stringify(request);
    const receive = (metrics: CorpusMetrics): void => {
      this.metrics = metrics;
      store.results.set(key, metrics);
    };
    this.load(key, async () => (store.results.get(key) as CorpusMetrics | undefined) ?? store.client.evaluateCorpus(request), receive);
  }

  protected override render(): TemplateResult {
    const { metrics, failure } = this;
    if (failure) return this.store.client.isLive ? html`${this.renderFailure()}` : html`<p class="muted">${failure}</p>`;
    if (!metrics) return html``;
    const compares = metrics.metrics[0]!.models.length > 1;
    return html`<div class="metrics">${metrics.metrics.map((metric) => this.renderMetric(metric))}</div>
      <p class="muted small">On ${metrics.rows.toLocaleString("en")} ${metrics.rows === 1 ? "pair" : "pairs"}. ${compares ? `Differences are from ${this.nameModel(metrics.metrics[0]!.models[0]!.model)}, by ${metrics.test}, with p-values corrected for the number of tests.` : ""}</p>`;
  }

  private renderMetric({ metric, higher_is_better, models }: CorpusMetric): TemplateResult {
    const [low, high] = [Math.min(...models.map(({ interval }) => interval[0])), Math.max(...models.map(({ interval }) => interval[1]))];
    const place = (value: number): number => (high > low ? (100 * (value - low)) / (high - low) : 50);
    return html`<table>
      <thead><tr>
        <th scope="col">${metric}${higher_is_better ? "" : " (lower is better)"}</th><td class="plot"></td><th scope="col">95 % interval</th>${models.length < 2 ? "" : html`<th scope="col">Difference</th>`}
      </tr></thead>
      <tbody>${models.map(({ model, value, interval, text, difference }) => {
        const [from, to] = [place(interval[0]), place(interval[1])];
        return html`<tr aria-current=${model === this.store.state.model}>
          <td>${this.nameModel(model)}</td>
          <td class="plot"><div class="track" aria-hidden="true"><i .style=${`left:${from}%;width:${to - from}%`}></i><b .style=${`left:${place(value)}%`}></b></div></td>
          <td class="value number"><b>${text[0]}</b><div class="muted small">${text[1]} to ${text[2]}</div></td>
          ${models.length < 2
            ? ""
            : html`<td class="value number">${difference
                ? html`${difference.text[0].replace("-", "−")}<div class="muted small">p ${formatP(difference.p_value)}, ${difference.significant ? html`<b>significant</b>` : "not significant"}</div>`
                : html`<span class="muted">–</span>`}</td>`}
        </tr>`;
      })}</tbody>
    </table>`;
  }

  private nameModel(id: string): string {
    return at(this.store.models, this.store.models.findIndex((model) => model.id === id)).name;
  }
}

const formatP = (value: number): string => (value < 0.001 ? "< 0.001" : `= ${value.toFixed(3)}`);
