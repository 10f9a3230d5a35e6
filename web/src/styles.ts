/** The styles that all views share, for their shadow roots. */
import { unsafeCSS } from "lit";
import text from "./shared.css" with { type: "text" };

export const shared = unsafeCSS(text);
