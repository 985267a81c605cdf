// Entry point of the dashboard.
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import "@fontsource-variable/inter/wght.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/timeline.css";
import "./style/files.css";

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
}
