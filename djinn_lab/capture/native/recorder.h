// The recorder: one for each session. Its lock is never held while the GIL is taken.
#pragma once
#include <unordered_map>
#include <unordered_set>
#include "histories.h"
#include "messagepack.h"
#include "ops.h"
#include "settings.h"

namespace djinn {
struct Value {
  c10::intrusive_ptr<LazyStorage> storage;
  const Layout* layout;
  int64_t offset;
};

enum class Phase : uint8_t { forward, backward, optimizer, other };
struct Scope {
  uint32_t path, call, line;
  Phase phase;
  bool operator==(const Scope& other) const {
    return path == other.path && call == other.call && line == other.line && phase == other.phase;
  }
};

// A program under way: what it would leave behind.
struct Flight {
  std::vector<std::pair<uint32_t, uint64_t>> made;  // node, base id
  std::vector<uint64_t> sources;
  std::unordered_map<uint64_t, at::Storage> spares;  // bytes of sources that the host has no longer
  uint64_t segment = 0;
  std::vector<uint32_t> kept;  // the places of its nodes among those recorded
  size_t nodes = 0;
};

struct Twin {
  c10::weak_intrusive_ptr<TensorImpl> tensor;
  const TensorImpl* address;
  uint32_t version;
  c10::intrusive_ptr<LazyStorage> storage;
  int64_t offset;
  bool once;  // its memory may change unseen: of use for one op
};

struct ModuleNames;  // see modules.h
// Where an op comes from: kept by the wrapper around module calls and by the optimizer's hooks, asked once per op.
class Scopes {
 public:
  std::vector<std::string> paths{""};
  std::vector<Scope> table;  // of the pending nodes
  std::string cell;
  std::string cell_file;     // the file whose lines are meant, by its text: code objects of one file do not always share their name object
  uint64_t cell_number = 0;  // another one for each cell of the process
  ModuleNames* names = nullptr;                // of the root module that runs
  std::unordered_set<PyObject*> seen_modules;  // in this cell
  uint32_t calls_ever = 0, root_call = 0, calls = 0, module_line = 0, optimizer_line = 0;
  bool begins_call = false, in_optimizer = false;
  std::vector<uint32_t> modules;
  int backward_task = -1;
  uint32_t backward_line = 0;
  Scope seen{0, 0, 0, Phase::other};

  void enter_cell(const std::string& name, const std::string& file);
  void look();         // at what runs now, in the thread that records; without the lock
  uint32_t current();  // index into `table` of what was seen last
  uint32_t line() const;  // of the cell that runs in this thread, 0 outside of cells
  void clear();
  uint32_t path_id(const std::string& path);

 private:
  std::unordered_map<std::string, uint32_t> path_ids_;
  std::unordered_map<uint64_t, uint32_t> index_;
  Scope last_{0, 0, 0, Phase::other};
  uint32_t last_index_ = 0;
};

extern std::mutex lock;         // of everything here
extern std::mutex deaths_lock;  // taken inside `lock`, or alone

class Recorder {
 public:
  explicit Recorder(py::object owner);
  ~Recorder();

  py::handle owner;  // the Python recorder, which owns this one
  Scopes scopes;
  std::atomic<bool> capturing{false};  // a cell is open; another session's cell inside it may be the one that is captured
  bool host_only = false, host_dirty = false, draws_open = false, keeps_histories = false;
  uint64_t settings = DEFAULT_SETTINGS;  // of the pending nodes
  bool for_accelerators = false, replayable = false;  // the pool has some; they compute by deterministic algorithms
  uint64_t segment = 1, ops_recorded = 0, plans_made = 0;
  size_t look_at = 1024, patience = 1024;  // with so many nodes pending the cell is sent ahead
  std::unordered_set<const c10::TensorImpl*> put_back;  // lately
  Histories histories;                     // of tensors that this cell wrote
  uint64_t made_before = 0;                // the last storage before this part of the cell
  bool begins_call = false;                // the op in hand is the first of a root module's call

  // ---- values. All need the lock.
  c10::intrusive_ptr<LazyStorage> fresh_storage(const Layout* layout, State state, Residency residency);
  Base* new_base(LazyStorage* storage, State state);
  uint64_t id_of(LazyStorage* storage, const Layout* layout, int64_t offset);  // records a view where there is none
  bool find_id(LazyStorage* storage, const TensorImpl* impl, Input& input);
  bool is_just_allocated(const LazyStorage* storage) const;  // the last node makes it, and leaves its bytes undefined
  uint64_t note_view(LazyStorage* storage, const Layout* layout, int64_t offset);  // a new id, for a node to come
  Twin* find_twin(const TensorImpl* impl);
  void forget_dead_twins();
  void forget_twins(const c10::StorageImpl* memory);

  // ---- nodes. All need the lock.
  size_t pending() const { return positions_.size(); }
  bool is_long() const {
    return pending() >= look_at && (begins_call || scopes.calls <= 1 || pending() >= look_at + patience);
  }
  uint64_t push(const Plan* plan, const Call& call);  // the first new id
  py::tuple assemble(const std::vector<uint64_t>& fetch, std::optional<std::string> rng_state);
  void settle(const Flight& flight, size_t executed, bool arrived, const std::string& reason);
  void lose_pending(const std::string& reason);
  void lose_pool(const Flight& flight, const std::string& reason);
  std::pair<at::Storage, PyObject*> bytes_of(const Flight& flight, uint64_t id);  // and their exposure, if any
  void lose_held(const std::vector<uint64_t>& ids, const std::string& reason);
  std::vector<uint64_t> take_released();
  void lose(uint64_t id, const std::string& reason);
  Base* find_base(uint64_t id);
  void drop_base(LazyStorage* storage);

  std::unordered_map<const c10::StorageImpl*, c10::SmallVector<Twin, 1>> twins;
  uint64_t new_serial() { return ++last_serial_; }
  uint64_t last_serial() const { return last_serial_; }
  uint64_t new_id() { return next_id_++; }
  // Of the nodes of a program that did not run; those of one that ran are forgotten. What they hold may ask the recorder as it goes.
  struct Taken {
    Written pending, not_run, ran;
  };
  Taken take_written(const Flight& flight, size_t executed) {
    std::lock_guard<std::mutex> guard(lock);
    Taken taken;
    if (keeps_histories) return taken;
    if (executed < flight.kept.size()) {  // what was recorded behind it is given up, too
      taken.pending = histories.take(segment, 0);
      taken.not_run = histories.take(flight.segment, flight.kept[executed]);
    }
    taken.ran = histories.take(flight.segment, 0);
    return taken;
  }
  void died(Base* base);
  std::vector<Base*> living();

 private:
  struct PendingValue {
    Base* base;  // null once freed
    bool is_base;
  };
  uint64_t derive(LazyStorage* storage, const Layout* layout, int64_t offset);
  uint64_t push_view(LazyStorage* storage, uint64_t from, const std::string& packed, const Layout* layout, const char* name);
  void take_dead(std::vector<Base*>& dead);
  void give_back(Base* base, const at::Storage& spare);
  void give_back(const Flight& flight);
  void give_back_spares();
  void free_base(Base* base);

  uint64_t next_id_ = 1, first_pending_ = 1, last_serial_ = 0;
  std::vector<uint64_t> words_;      // plan, scope, first new id, inputs, scalars of each pending node
  std::vector<size_t> positions_;    // where each node begins
  std::vector<PendingValue> values_;  // by id - first_pending_
  std::unordered_map<uint64_t, Base*> held_;
  std::vector<Base*> deaths_;        // guarded by the deaths' lock
  std::vector<uint64_t> released_;   // died; the pool has not been notified yet
  std::unordered_map<std::string, std::unique_ptr<Plan>> view_plans_;
  friend struct Assembly;
};
}  // namespace djinn
