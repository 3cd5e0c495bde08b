/** One line in the status bar; a click opens the sidebar. */

import { Widget } from '@lumino/widgets';

import { Pool } from './pool';

export class StatusLine extends Widget {
  constructor(pool: Pool, open: () => void) {
    super({ node: document.createElement('button') });
    this.addClass('djinn-status');
    this.addClass('jp-mod-highlighted');
    this.node.onclick = open;
    const show = (): void => {
      this.node.textContent = pool.view?.line ?? 'Djinn: connecting';
      this.node.title = pool.view?.message || 'Show the pool of Djinn Lab';
    };
    pool.changed.connect(show);
    show();
  }
}
