/** A mark on the cells whose torch work is captured, and a notification when a long one ends. */

import { Notification } from '@jupyterlab/apputils';
import { Cell, ICodeCellModel } from '@jupyterlab/cells';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';

const CLASS = 'djinn-captured';
const KERNEL = 'djinn';
const LONG_MS = 60_000;

/** Return whether a cell's code runs on the pool. ``all``: its kernel captures every cell. */
export function isCaptured(code: string, all: boolean): boolean {
  const text = code.trim();
  if (/^%%djinn(\s|$)/.test(text)) {
    return true;
  }
  const magic = text.startsWith('%%') || /^[%!?].*$/.test(text);
  return all && text !== '' && !magic;
}

/** Mark the captured cells of every notebook, also while they are typed. */
export function markCaptured(tracker: INotebookTracker): void {
  tracker.widgetAdded.connect((_, panel) => watch(panel));
  tracker.forEach(watch);
}

function watch(panel: NotebookPanel): void {
  const mark = (): void => {
    const all = panel.sessionContext.session?.kernel?.name === KERNEL;
    for (const cell of panel.content.widgets) {
      const captured = cell.model.type === 'code' && isCaptured(cell.model.sharedModel.source, all);
      cell.toggleClass(CLASS, captured);
    }
  };
  void panel.context.ready.then(() => {
    panel.context.model.sharedModel.changed.connect(mark);
    panel.content.modelContentChanged.connect(mark);
    panel.sessionContext.kernelChanged.connect(mark);
    mark();
  });
}

/** Say when a captured cell ends that took longer than a minute. */
export function notifyOfLongCells(): void {
  const began = new WeakMap<Cell, number>();
  NotebookActions.executionScheduled.connect((_, { cell }) => began.set(cell, Date.now()));
  NotebookActions.executed.connect((_, { cell, success }) => {
    const took = Date.now() - (began.get(cell) ?? Date.now());
    if (took < LONG_MS || !cell.hasClass(CLASS)) {
      return;
    }
    const count = (cell.model as ICodeCellModel).executionCount;
    const text = `In [${count ?? ' '}] ${success ? 'is done' : 'did not succeed'} after ${minutes(took)}`;
    Notification.emit(text, success ? 'success' : 'error', { autoClose: false });
    if (document.hidden && window.Notification?.permission === 'granted') {
      new window.Notification('Djinn Lab', { body: text });
    }
  });
}

function minutes(took: number): string {
  const seconds = Math.round(took / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}
