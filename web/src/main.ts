/** The entry of the bundle. */
import "./views/explorer-app.js";
