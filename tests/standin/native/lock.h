// One lock for everything that this process knows of its devices.
//
// The GIL may be taken while the lock is held: torch takes it even to copy a tensor that Python knows. So a thread that
// waits for the lock, or for the device, must not hold the GIL.
#pragma once

#include <Python.h>
#include <c10/util/Exception.h>

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace standin {

// Lets the GIL go where this thread holds it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

inline std::recursive_mutex device_lock;
inline int lock_depth = 0;

// Set in the child of a process that had a context: a context does not survive a fork, as on a GPU.
inline bool in_bad_fork = false;

// Closures that have run. They may own Python's tensors, whose end runs anything: destroyed where no lock is held.
inline auto& retired = *new std::vector<std::function<void()>>();

class Hold {
 public:
  Hold() {
    TORCH_CHECK(!in_bad_fork, "Cannot re-initialize standin in forked subprocess: use the 'spawn' start method");
    if (!device_lock.try_lock()) {
      const WithoutGil let_go;
      device_lock.lock();
    }
    ++lock_depth;
  }
  ~Hold() {
    std::vector<std::function<void()>> destroyed;
    if (--lock_depth == 0) destroyed.swap(retired);
    device_lock.unlock();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
};

}  // namespace standin
