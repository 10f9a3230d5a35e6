/** Requests to the server, generated from src/regard/explorer/schemas.py by `make web`. Do not edit. */

export const MAX_TEXT = 2000;
export const MAX_BEAM = 20;
export const MAX_ROWS = 2000;

/** What to explain, with which methods, and which token or target to contrast it with. */
export interface AttributionRequest {
  model: string;
  source: TextSource | ImageSource | ExampleSource;
  search?: SearchRequest;
  target?: string | null;
  methods?: readonly ("gradient_x_input" | "integrated_gradients" | "occlusion" | "value_zeroing" | "attention")[];
  contrast?: string | Contrast | null;
  baseline?: "zero" | "unknown" | "padding";
  integration_steps?: number;
  previous?: boolean;
  normalize?: boolean;
}

/** Another token at a step, counted from 0. */
export interface Contrast {
  step: number;
  token: string;
}

/** How many pairs of the test set (or the dev set) to predict, and how. */
export interface CorpusRequest {
  model: string;
  search?: SearchRequest;
  limit?: number;
}

/** A source of the run's test set, or of its dev set if it has none, by its index. */
export interface ExampleSource {
  example: number;
}

/** The prediction whose heads are ablated. */
export interface HeadsRequest {
  model: string;
  source: TextSource | ImageSource | ExampleSource;
  search?: SearchRequest;
  edits?: readonly Record<string, unknown>[];
}

/** An image file (PNG, JPEG or WebP), as base64. */
export interface ImageSource {
  image: string;
}

/** Rows of the corpus that were predicted before, and the models to evaluate on them. Others are compared with the
first. */
export interface MetricsRequest {
  models: readonly string[];
  search?: SearchRequest;
  indices: readonly number[];
}

/** A source, and the ids of the output tokens after which the state of the decoder is compared with those of
training pairs. */
export interface NeighborsRequest {
  model: string;
  source: TextSource | ImageSource | ExampleSource;
  tokens?: readonly number[];
}

/** The settings of the search and the constraints of `Model.predict`, with limits. */
export interface SearchRequest {
  beam?: number;
  nbest?: number;
  length_penalty?: number;
  coverage_penalty?: number;
  groups?: number;
  diversity_penalty?: number;
  sample?: boolean;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  mbr_samples?: number;
  no_repeat_ngram?: number;
  repetition_penalty?: number;
  loop_guard?: boolean;
  min_length?: number;
  seed?: number;
  prefix?: string;
  must_contain?: readonly string[];
  banned?: readonly string[];
}

/** A text. */
export interface TextSource {
  text: string;
}

/** What to trace, and what the document contains. */
export interface TraceRequest {
  model: string;
  source: TextSource | ImageSource | ExampleSource;
  search?: SearchRequest;
  target?: string | null;
  edits?: readonly Record<string, unknown>[];
  queries?: boolean;
  states?: boolean;
  candidates?: number;
  summary?: boolean;
}
