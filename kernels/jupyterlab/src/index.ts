/** The JupyterLab extension of Djinn Lab. Everything of Djinn Lab works without it. */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import { LabIcon } from '@jupyterlab/ui-components';

import { markCaptured, notifyOfLongCells } from './captured';
import { icon } from './icon';
import { Pool } from './pool';
import { Sidebar } from './sidebar';
import { StatusLine } from './status';

const SHOW = 'djinn-lab:show-pool';
const ALLOW = 'djinn-lab:allow-desktop-notifications';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'djinn-lab:pool',
  description: 'Shows the pool of Djinn Lab, and marks captured cells.',
  autoStart: true,
  optional: [INotebookTracker, IStatusBar, ICommandPalette, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker | null,
    statusBar: IStatusBar | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null
  ) => {
    const pool = new Pool();
    const sidebar = new Sidebar(pool);
    sidebar.title.icon = new LabIcon({ name: 'djinn-lab:pool', svgstr: icon });
    app.shell.add(sidebar, 'left', { rank: 600 });
    restorer?.add(sidebar, sidebar.id);
    app.commands.addCommand(SHOW, {
      label: 'Show the Pool',
      execute: () => app.shell.activateById(sidebar.id)
    });
    app.commands.addCommand(ALLOW, {
      label: 'Notify on the Desktop When a Long Cell Ends',
      execute: () => Notification.requestPermission()
    });
    palette?.addItem({ command: SHOW, category: 'Djinn Lab' });
    palette?.addItem({ command: ALLOW, category: 'Djinn Lab' });
    statusBar?.registerStatusItem('djinn-lab:status', {
      item: new StatusLine(pool, () => void app.commands.execute(SHOW)),
      align: 'left',
      rank: 600
    });
    if (tracker !== null) {
      markCaptured(tracker);
      notifyOfLongCells();
    }
  }
};

export default plugin;
