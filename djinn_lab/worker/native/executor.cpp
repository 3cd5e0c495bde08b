// The worker's loop over a program's nodes, without Python between two ops. See djinn_lab/worker/native_run.py.
#include <torch/csrc/autograd/python_variable.h>

#include "heap.h"
#include "run.h"

namespace {

template <typename Type>
void mark(py::class_<djinn::Marks>& cls, const char* name, std::atomic<Type> djinn::Marks::*field) {
  cls.def_property(
      name, [field](const djinn::Marks& marks) { return (marks.*field).load(); },
      [field](djinn::Marks& marks, Type value) { (marks.*field).store(value); });
}

}  // namespace

PYBIND11_MODULE(djinn_executor, module) {
  using djinn::Account, djinn::DecodedRecords, djinn::EncodedProgram, djinn::Marks, djinn::Records, djinn::Op, djinn::Plan, djinn::Run, djinn::Status, djinn::TensorHeap;

  py::class_<Account, std::shared_ptr<Account>>(module, "Account")
      .def(py::init<int64_t>())
      .def_property_readonly("used_bytes", &Account::used_bytes)
      .def_property_readonly("peak_bytes", &Account::peak_bytes)
      .def("start_peak", &Account::start_peak)
      .def("add", &Account::add)
      .def("mark_peak", &Account::mark_peak)
      .def("reserve",
           [](Account& account, int64_t nbytes) -> std::optional<int64_t> {
             const int64_t used = account.reserve(nbytes);
             return used < 0 ? std::nullopt : std::optional(used);
           })
      .def("settle", &Account::settle)
      .def("release", &Account::release)
      .def("reserve_other", &Account::reserve_other)
      .def("release_other", &Account::release_other);

  module.def("keep_tensors_in_own_heap", [](int64_t kept_bytes_max) { TensorHeap::instance().install(kept_bytes_max); });
  module.def("trim_heap", [] {
    const py::gil_scoped_release released;
    TensorHeap::instance().trim();
  });
  // Mapped for tensors, of these kept though freed, and what malloc has.
  module.def("heap_bytes", [] {
    const auto& heap = TensorHeap::instance();
    return py::make_tuple(heap.mapped_bytes(), heap.kept_bytes(), TensorHeap::malloc_bytes());
  });

  py::class_<Marks> marks(module, "Marks");
  marks.def(py::init<>());
  mark(marks, "version", &Marks::version);
  mark(marks, "writing", &Marks::writing);
  mark(marks, "reading", &Marks::reading);
  mark(marks, "arriving", &Marks::arriving);
  mark(marks, "tracked", &Marks::tracked);

  py::class_<Op, std::shared_ptr<Op>>(module, "Op")
      .def(py::init<const std::string&, const std::string&, const py::list&, const py::dict&, const py::object&,
                    const py::object&, std::vector<bool>, std::vector<int32_t>, bool, bool, bool, bool, bool,
                    std::vector<int32_t>>());

  py::enum_<Status>(module, "Status")
      .value("DONE", Status::done)
      .value("STOPPED", Status::stopped)
      .value("PYTHON", Status::python)
      .value("MEMORY", Status::memory)
      .value("MISMATCH", Status::mismatch);

  py::class_<EncodedProgram, std::shared_ptr<EncodedProgram>>(module, "EncodedProgram")
      .def(py::init<const py::bytes&>())
      .def_property_readonly("node_count", &EncodedProgram::size)
      .def("node", &EncodedProgram::node)
      .def("sent", &EncodedProgram::sent)
      .def("missing", &EncodedProgram::missing)
      .def("rest", &EncodedProgram::rest);

  py::class_<Run>(module, "Run")
      .def("advance", &Run::advance)
      .def("ran", &Run::ran)
      .def("settle", &Run::settle)
      .def("flush", &Run::flush)
      .def_property_readonly("live_bytes", &Run::live_bytes)
      .def_property_readonly("executed", &Run::executed)
      .def_property_readonly("launched", &Run::launched)
      .def_property_readonly("in_op", &Run::in_op)
      .def_property_readonly("times", &Run::times)
      .def_property_readonly("mismatch", &Run::mismatch);

  py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan")
      .def(py::init<const py::sequence&, const py::sequence&, const py::sequence&, const py::sequence&,
                    const py::sequence&, std::vector<std::shared_ptr<Op>>>())
      .def("begin", [](std::shared_ptr<Plan> plan, std::shared_ptr<Account> account, py::object bridge,
                       const py::object& nodes, const py::object& sources, py::dict tensors, py::dict storage_of,
                       int64_t executed, double origin_s, py::object stop, const std::string& device) {
        auto records = py::isinstance<EncodedProgram>(nodes)
                           ? std::shared_ptr<Records>(py::cast<std::shared_ptr<EncodedProgram>>(nodes))
                           : std::make_shared<DecodedRecords>(nodes, sources);
        return std::make_unique<Run>(plan, account, std::move(bridge), records, std::move(tensors),
                                     std::move(storage_of), executed, origin_s, std::move(stop), c10::Device(device));
      });
}
