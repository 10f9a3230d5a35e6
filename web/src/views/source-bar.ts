/** The source, the search, and the edits of the present prediction. */
import { css, html, type TemplateResult } from "lit";
import { customElement, query } from "lit/decorators.js";
import { removeAt } from "../arrays.js";
import { describeEdits } from "../edits.js";
import { shared } from "../styles.js";
import type { Example } from "../state.js";
import { describeReading } from "../trace.js";
import { StoreElement } from "./base.js";
import { renderRefusal } from "./controls.js";

@customElement("source-bar")
export class SourceBar extends StoreElement {
  static override styles = [
    shared,
    css`
      form { display: flex; flex-wrap: wrap; gap: var(--space-2); align-items: stretch; }
      textarea {
        flex: 1; min-width: 0; resize: none; field-sizing: content; max-height: 6.5em; padding: 9px 14px; font-size: var(--size-3); line-height: 1.35;
        background: var(--panel); border: 1px solid var(--line-strong); border-radius: 10px;
      }
      .note { max-width: none; margin-top: var(--space-2); padding: 4px 14px; border-inline-start: 3px solid var(--accent); background: var(--tint); border-radius: 0 8px 8px 0; }
      .edits { margin-top: var(--space-2); }
      .edit { border-radius: 999px; background: color-mix(in srgb, var(--edit) 16%, transparent); border-color: transparent; min-height: 28px; padding: 2px 12px; font-size: var(--size-1); }
      .image { flex: 1; min-width: 0; display: flex; flex-wrap: wrap; align-items: center; gap: var(--space-2); padding: 4px 14px; background: var(--panel); border: 1px solid var(--line-strong); border-radius: 10px; min-height: 44px; }
      .image span { margin-inline-end: auto; font-size: var(--size-3); }
      .file { position: relative; border: 1px solid var(--line-strong); border-radius: 8px; padding: 4px 12px; cursor: pointer; }
      .file:hover { background: var(--hover); }
      .file:focus-within { outline: 2.5px solid var(--accent); outline-offset: 2px; }
      .file input { position: absolute; inset: 0; opacity: 0; cursor: pointer; }
      tool-bar { display: flex; gap: var(--space-2); min-width: 0; }
      #examples { width: 15em; flex: 0 1 auto; min-width: 0; }
      @media (max-width: 860px) {
        textarea, .image { flex-basis: 100%; }
        tool-bar, #examples { flex: 1; }
        #run { margin-inline-start: auto; }
      }
    `,
  ];

  @query("textarea") private textarea!: HTMLTextAreaElement | null;

  focusText(): void {
    this.textarea?.focus();
    this.textarea?.select();
  }

  protected override render(): TemplateResult {
    const { state, client, examples } = this.store;
    return html`
      <form @submit=${this.submit}>
        ${this.store.readsImages ? this.renderFile() : this.renderText()}
        <tool-bar aria-label="Examples and search">
          ${examples.length > 1 ? this.renderExamples(examples) : ""}
          ${client.isLive ? this.renderRun() : ""}
        </tool-bar>
      </form>
      ${this.renderReading()}
      ${client.isLive ? "" : html`<p class="muted small" id="saved">This is an exported page: it shows what was computed. To change the source or the edits, run <code>regard explore</code>.</p>`}
      ${state.edits.length
        ? html`<div class="row edits" role="group" aria-label="Edits">
            <span class="muted small">Edits</span>
            ${describeEdits(state.edits, state.text, this.store.trace, this.store.sourceTokens).map(
              (text, index) => html`<button type="button" class="edit" ?disabled=${!this.store.canTrace({ edits: removeAt(state.edits, index) })} aria-label=${`Remove the edit: ${text}`} @click=${() => this.store.removeEdit(index)}><bdi>${text}</bdi> ×</button>`,
            )}
            ${renderRefusal(this.store, "edits")}
          </div>`
        : ""}
    `;
  }

  /** What the model does not read of the source. */
  private renderReading(): TemplateResult | string {
    const { trace, error } = this.store;
    // After a failure, the trace is that of another source.
    const notes = trace && !error ? describeReading(trace) : [];
    return notes.length ? html`<p class="note small" id="notes" role="note">${notes.join(" ")}</p>` : "";
  }

  private renderRun(): TemplateResult {
    return html`<label class="field">Beam
        <select id="beam" @change=${(event: Event) => this.store.compute({ beam: Number((event.target as HTMLSelectElement).value) })}>
          ${[1, 2, 3, 4, 5, 8, 10].map((beam) => html`<option value=${beam} ?selected=${beam === this.store.state.beam}>${beam}</option>`)}
        </select></label>
      <button class="primary" id="run">Run</button>`;
  }

  private renderText(): TemplateResult {
    return html`<textarea rows="1" dir="auto" aria-label="Source" placeholder="Type a source text" ?readonly=${!this.store.client.isLive}
      .value=${this.store.state.text} @keydown=${this.press}></textarea>`;
  }

  private renderFile(): TemplateResult {
    const { client, splitName, state: { example, text } } = this.store;
    return html`<div class="image">
      <span><bdi>${example === null ? text || "No image" : `Image ${example + 1} of the ${splitName}`}</bdi></span>
      ${client.isLive ? this.renderImages() : ""}
    </div>`;
  }

  private renderImages(): TemplateResult {
    const { splitName, model, state: { example } } = this.store;
    const hasExamples = model?.split !== null;
    return html`<button type="button" id="previous-image" ?disabled=${!hasExamples || !example} aria-label=${`Previous image of the ${splitName}`} @click=${() => this.store.openExample(example! - 1)}>←</button>
      <button type="button" id="next-image" ?disabled=${!hasExamples} aria-label=${`Next image of the ${splitName}`} @click=${() => this.store.openExample((example ?? -1) + 1)}>→</button>
      <label class="file">Open an image <input type="file" accept="image/png,image/jpeg,image/webp" @change=${this.openFile} /></label>`;
  }

  private renderExamples(examples: readonly Example[]): TemplateResult {
    return html`<select id="examples" aria-label="Examples" @change=${(event: Event) => this.chooseExample(event.target as HTMLSelectElement)}>
      <option value="">Examples</option>
      ${examples.map(({ label }, index) => html`<option value=${index + 1}>${label}</option>`)}
    </select>`;
  }

  private chooseExample(select: HTMLSelectElement): void {
    const example = this.store.examples[Number(select.value) - 1];
    select.value = "";
    if (example) this.store.open(example);
  }

  private press(event: KeyboardEvent): void {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.textarea!.form!.requestSubmit();
  }

  private submit(event: Event): void {
    event.preventDefault();
    const text = this.textarea?.value ?? "";
    if (this.textarea && text !== this.store.state.text) this.store.compute({ text, edits: [], row: null, column: null });
    else this.store.retry();
    this.dispatchEvent(new Event("run"));
  }

  private async openFile(event: Event): Promise<void> {
    const [file] = (event.target as HTMLInputElement).files ?? [];
    if (!file) return;
    const bytes = new Uint8Array(await file.arrayBuffer());
    let binary = "";
    for (const byte of bytes) binary += String.fromCharCode(byte);
    this.store.openImage(btoa(binary), file.name);
  }
}
