/** The pool as Jupyter's server sees it: asked again and again while somebody looks. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';

const LOOK_EVERY_MS = 2000;
const AFTER_FAILURE_MS = 10000;

/** The structures of kernels/lab_view.py. */
export interface Device {
  device: string;
  state: string;
  detail: string;
  used: number;
}

export interface Session {
  session: string;
  label: string;
  detail: string;
}

export interface Job {
  job: string;
  cell: string;
  state: string;
  detail: string;
  done: number | null;
}

export interface PoolView {
  connection: 'live' | 'absent' | 'lost' | 'refused';
  line: string;
  message: string;
  advice: string;
  user: string;
  devices: Device[];
  sessions: Session[];
  jobs: Job[];
  waiting_of_others: number;
  dashboard: string;
}

/** Asks for the view every two seconds while the browser tab is visible, and says when it changed. */
export class Pool {
  readonly settings = ServerConnection.makeSettings();
  private _view: PoolView | null = null;
  private _text = '';
  private _timer = 0;
  private _changed = new Signal<this, PoolView>(this);

  constructor() {
    document.addEventListener('visibilitychange', () => this._look());
    void this._look();
  }

  get view(): PoolView | null {
    return this._view;
  }

  get changed(): ISignal<this, PoolView> {
    return this._changed;
  }

  /** Stop a job. Rejects with the pool's own words. */
  async cancel(job: string): Promise<void> {
    await this._request(`jobs/${job}/cancel`, { method: 'POST' });
    await this._look();
  }

  private async _look(): Promise<void> {
    window.clearTimeout(this._timer);
    if (document.hidden) {
      return;
    }
    let again = LOOK_EVERY_MS;
    try {
      this._take(await (await this._request('pool', {})).text());
    } catch (error) {
      again = AFTER_FAILURE_MS;
      this._take(JSON.stringify(withoutServer(String(error))));
    }
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => void this._look(), again);
  }

  private _take(text: string): void {
    if (text === this._text) {
      return;
    }
    this._text = text;
    this._view = JSON.parse(text) as PoolView;
    this._changed.emit(this._view);
  }

  private async _request(path: string, init: RequestInit): Promise<Response> {
    const url = URLExt.join(this.settings.baseUrl, 'djinn-lab', path);
    const response = await ServerConnection.makeRequest(url, init, this.settings);
    if (!response.ok) {
      throw await ServerConnection.ResponseError.create(response);
    }
    return response;
  }
}

function withoutServer(error: string): PoolView {
  return {
    connection: 'lost',
    line: 'Djinn: no answer',
    message: `Jupyter's server does not answer for Djinn Lab (${error}).`,
    advice: 'Is djinn-lab installed where Jupyter runs? See: jupyter server extension list',
    user: '',
    devices: [],
    sessions: [],
    jobs: [],
    waiting_of_others: 0,
    dashboard: ''
  };
}
