/** The source, the search, and the edits of the present prediction. */
import { css, html, type TemplateResult } from "lit";
import { customElement, query } from "lit/decorators.js";
import { shared } from "../styles.js";
import { labelToken, type Edit } from "../trace.js";
import { StoreElement } from "./base.js";

const LONGEST_TEXT = 2000;

@customElement("source-bar")
export class SourceBar extends StoreElement {
  static override styles = [
    shared,
    css`
      form { display: flex; gap: var(--space-2); align-items: stretch; }
      textarea {
        flex: 1; min-width: 0; resize: none; field-sizing: content; max-height: 6.5em; padding: 9px 14px; font-size: var(--size-3); line-height: 1.35;
        background: var(--panel); border: 1px solid var(--line-strong); border-radius: 10px;
      }
      .edits { margin-top: var(--space-2); }
      .edit { border-radius: 999px; background: var(--tint); border-color: transparent; min-height: 28px; padding: 2px 12px; font-size: var(--size-1); }
      input[type="file"] { flex: 1; padding: 8px; background: var(--panel); border: 1px solid var(--line-strong); border-radius: 10px; }
      select { max-width: 15em; }
    `,
  ];

  @query("textarea") private textarea!: HTMLTextAreaElement | null;

  focusText(): void {
    this.textarea?.focus();
    this.textarea?.select();
  }

  protected override render(): TemplateResult {
    const { state, client, model } = this.store;
    return html`
      <form @submit=${this.submit}>
        ${this.store.readsImages ? this.renderFile() : this.renderText()}
        ${model && model.examples.length > 1 && !this.store.readsImages ? this.renderExamples(model.examples) : ""}
        <label class="field">Beam
          <select id="beam" ?disabled=${!client.isLive} @change=${(event: Event) => this.store.compute({ beam: Number((event.target as HTMLSelectElement).value) })}>
            ${[1, 2, 3, 4, 5, 8, 10].map((beam) => html`<option value=${beam} ?selected=${beam === state.beam}>${beam}</option>`)}
          </select></label>
        <button class="primary" id="run" ?disabled=${!client.isLive}>Run</button>
      </form>
      ${state.edits.length
        ? html`<div class="row edits" role="group" aria-label="Edits">
            <span class="muted small">Edits</span>
            ${state.edits.map((edit, index) => html`<button type="button" class="edit" ?disabled=${!client.isLive} aria-label=${`Remove the edit: ${this.describe(edit)}`} @click=${() => this.store.removeEdit(index)}>${this.describe(edit)} ×</button>`)}
          </div>`
        : ""}
    `;
  }

  private renderText(): TemplateResult {
    return html`<textarea rows="1" dir="auto" aria-label="Source" placeholder="Type a source text" maxlength=${LONGEST_TEXT} ?readonly=${!this.store.client.isLive}
      .value=${this.store.state.text} @keydown=${this.press}></textarea>`;
  }

  private renderFile(): TemplateResult {
    return html`<input type="file" accept="image/png,image/jpeg,image/webp" aria-label="Image" @change=${this.openFile} />`;
  }

  private renderExamples(examples: readonly string[]): TemplateResult {
    return html`<select id="examples" aria-label="Examples" @change=${(event: Event) => this.chooseExample(event.target as HTMLSelectElement)}>
      <option value="">Examples</option>
      ${examples.map((text, index) => html`<option value=${index + 1}>${text}</option>`)}
    </select>`;
  }

  private chooseExample(select: HTMLSelectElement): void {
    const text = this.store.model!.examples[Number(select.value) - 1];
    select.value = "";
    if (text !== undefined) this.store.compute({ text, edits: [], row: 0, column: 0 });
  }

  private press(event: KeyboardEvent): void {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.submit(event);
  }

  private submit(event: Event): void {
    event.preventDefault();
    const text = this.textarea?.value ?? "";
    if (this.textarea && text !== this.store.state.text) this.store.compute({ text, edits: [], row: 0, column: 0 });
  }

  private async openFile(event: Event): Promise<void> {
    const [file] = (event.target as HTMLInputElement).files ?? [];
    if (!file) return;
    const bytes = new Uint8Array(await file.arrayBuffer());
    let binary = "";
    for (const byte of bytes) binary += String.fromCharCode(byte);
    this.store.openImage(btoa(binary), file.name);
  }

  private describe(edit: Edit): string {
    const { trace } = this.store;
    const source = (position: unknown): string => labelToken(trace?.source.tokens[Number(position)] ?? `position ${Number(position) + 1}`);
    const head = edit["head"] === null || edit["head"] === undefined ? "all heads" : `head ${Number(edit["head"]) + 1}`;
    const step = edit["step"] === null || edit["step"] === undefined ? "all steps" : `step ${Number(edit["step"]) + 1}`;
    const token = trace?.hypotheses[0]?.tokens[Number(edit["step"])];
    const descriptions: Record<string, () => string> = {
      force_token: () => `“${labelToken(token ?? String(edit["token"]))}” at step ${Number(edit["step"]) + 1}`,
      set_row: () => `weights set at ${step}, ${head}`,
      mask_keys: () => `${(edit["keys"] as number[]).length} keys masked at ${step}, ${head}`,
      uniform_row: () => `uniform weights at ${step}, ${head}`,
      ablate_head: () => `head ${Number(edit["head"]) + 1} ablated`,
      replace_source: () => `source ${Number(edit["position"]) + 1} → “${String(edit["text"])}”`,
      delete_source: () => `source ${Number(edit["position"]) + 1} deleted`,
      mask_source: () => `source “${source(edit["position"])}” masked`,
      mask_region: () => `${(edit["cells"] as number[]).length} cells brushed out`,
    };
    return descriptions[edit.kind]?.() ?? edit.kind;
  }
}
