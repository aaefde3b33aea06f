// The views of the page, in the order of their keys 1 to 9 and 0.

import type { ComponentType } from "preact";
import type { Model } from "../state";
import { Architecture } from "./architecture";
import { Attention } from "./attention";
import { Figures } from "./figures";
import { Run } from "./run";
import { Search } from "./search";

export interface View {
  title: string;
  show: ComponentType<{ model: Model }>;
  applies?: (model: Model) => boolean;
}

export const VIEWS: Record<string, View> = {
  architecture: { title: "Architecture", show: Architecture },
  attention: { title: "Attention", show: Attention },
  search: { title: "Search", show: Search, applies: (model) => model.generates },
  figures: { title: "Figures", show: Figures },
  run: { title: "Training run", show: Run, applies: (model) => model.has_run },
};
