// The views of the page, in the order of their keys 1 to 9 and 0.

import type { ComponentType } from "preact";
import type { Model } from "../state";
import { Architecture } from "./architecture";
import { Attention } from "./attention";
import { Changes } from "./changes";
import { Figures } from "./figures";
import { Lens } from "./lens";
import { Neuron } from "./neuron";
import { Roles } from "./roles";
import { Run } from "./run";
import { Search } from "./search";
import { Walkthrough } from "./walkthrough";

export interface View {
  title: string;
  show: ComponentType<{ model: Model }>;
  applies?: (model: Model) => boolean;
  hasHeads?: boolean; // whether the arrow keys choose a layer and a head
}

export const VIEWS: Record<string, View> = {
  architecture: { title: "Architecture", show: Architecture },
  attention: { title: "Attention", show: Attention, hasHeads: true },
  neuron: { title: "Neuron", show: Neuron, hasHeads: true },
  walkthrough: { title: "Arithmetic", show: Walkthrough },
  lens: { title: "Lens", show: Lens, applies: (model) => model.has_logits },
  changes: { title: "Changes", show: Changes, hasHeads: true, applies: (model) => model.has_logits },
  roles: { title: "Roles", show: Roles, hasHeads: true, applies: (model) => model.has_roles },
  search: { title: "Search", show: Search, applies: (model) => model.generates },
  figures: { title: "Figures", show: Figures },
  run: { title: "Training run", show: Run, hasHeads: true, applies: (model) => model.has_run },
};
