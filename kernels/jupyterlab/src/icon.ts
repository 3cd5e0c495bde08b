/** The mark of Djinn Lab, in the colours of JupyterLab's theme. */
export const icon =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="16">' +
  '<g class="jp-icon3" fill="#616161">' +
  '<path d="M8 5v22h7.5a11 11 0 0 0 0-22zm4 4h3.5a7 7 0 0 1 0 14H12z"/>' +
  '<circle cx="26" cy="6" r="3.5"/></g></svg>';
