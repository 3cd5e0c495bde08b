/** The sidebar: the cells that run and wait, the devices, and where the sessions' state is. */

import { Notification } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { Device, Job, Pool, PoolView, Session } from './pool';

export class Sidebar extends Widget {
  constructor(private _pool: Pool) {
    super();
    this.id = 'djinn-lab-pool';
    this.addClass('djinn-sidebar');
    this.title.caption = 'Djinn Lab: the pool';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'The pool of Djinn Lab');
    this._pool.changed.connect(() => this.update());
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.update();
  }

  protected onUpdateRequest(message: Message): void {
    super.onUpdateRequest(message);
    const view = this._pool.view;
    const kept = document.activeElement?.getAttribute('data-key');
    this.node.replaceChildren(...(view === null ? [sentence('Looking for a pool')] : this._parts(view)));
    if (kept) {
      this.node.querySelector<HTMLElement>(`[data-key="${kept}"]`)?.focus();
    }
  }

  private _parts(view: PoolView): HTMLElement[] {
    if (view.connection !== 'live') {
      return [heading(view.line), sentence(view.message), sentence(view.advice)];
    }
    const waiting = view.waiting_of_others;
    const others = waiting ? [sentence(`${waiting} of other users ${waiting > 1 ? 'wait' : 'waits'}.`)] : [];
    return [
      ...this._dashboard(view.dashboard),
      heading('My cells'),
      list(view.jobs.map(job => this._job(job)), 'None runs or waits.'),
      ...others,
      heading('Devices'),
      list(view.devices.map(device), 'This pool has no device.'),
      heading('My sessions'),
      list(view.sessions.map(session), 'None yet. Run a cell that begins with %%djinn.')
    ];
  }

  private _job(job: Job): HTMLElement {
    const row = item(job.cell, job.state, job.detail);
    if (job.done !== null) {
      row.append(bar(job.done, `${job.cell}: part that is done`));
    }
    const stop = document.createElement('button');
    stop.textContent = 'Stop';
    stop.className = 'djinn-stop jp-mod-styled jp-mod-warn';
    stop.dataset.key = job.job;
    stop.setAttribute('aria-label', `Stop ${job.cell}`);
    stop.onclick = () => {
      stop.disabled = true;
      this._pool.cancel(job.job).catch((error: Error) => {
        stop.disabled = false;
        Notification.error(`${job.cell} was not stopped: ${error.message}`);
      });
    };
    row.append(stop);
    return row;
  }

  private _dashboard(path: string): HTMLElement[] {
    if (!path) {
      return [];
    }
    const link = document.createElement('a');
    link.textContent = 'Open the dashboard';
    link.href = URLExt.join(this._pool.settings.baseUrl, path);
    link.target = '_blank';
    link.rel = 'noopener';
    link.dataset.key = 'dashboard';
    return [link];
  }
}

function device(one: Device): HTMLElement {
  const row = item(one.device, one.state, one.detail);
  row.append(bar(one.used, `${one.device}: memory in use`));
  return row;
}

function session(one: Session): HTMLElement {
  return item(one.label, '', one.detail);
}

function heading(text: string): HTMLElement {
  const made = document.createElement('h3');
  made.textContent = text;
  return made;
}

function sentence(text: string): HTMLElement {
  const made = document.createElement('p');
  made.textContent = text;
  return made;
}

function list(rows: HTMLElement[], empty: string): HTMLElement {
  if (!rows.length) {
    return sentence(empty);
  }
  const made = document.createElement('ul');
  made.append(...rows);
  return made;
}

function item(name: string, state: string, detail: string): HTMLElement {
  const row = document.createElement('li');
  const first = document.createElement('div');
  const label = document.createElement('strong');
  label.textContent = name;
  first.append(label, state ? ` ${state}` : '');
  const second = document.createElement('div');
  second.className = 'djinn-detail';
  second.textContent = detail;
  row.append(first, second);
  return row;
}

function bar(part: number, label: string): HTMLElement {
  const made = document.createElement('progress');
  made.max = 1;
  made.value = part;
  made.setAttribute('aria-label', label);
  return made;
}
