// A device that is not the CPU and computes for real, on any machine: memory of the host behind torch's key for devices
// from outside (PrivateUse1). Two of them, standin:0 and standin:1. Every operation is the CPU's, on copies. As on a GPU,
// tensors of two devices do not mix, random numbers have a state of their own, and memory can run out.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/version.h>

#include <cstdlib>
#include <mutex>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
constexpr auto STANDIN = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex COUNT = 2;
thread_local DeviceIndex current = 0;

Device standin(DeviceIndex index) {
  return Device(STANDIN, index < 0 ? current : index);
}

// memory

std::mutex memory_lock;
int64_t used[COUNT] = {0, 0};
int64_t limit = -1; // bytes of each device, -1 for no limit

struct Block {
  void* memory;
  int64_t size;
  DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  std::lock_guard<std::mutex> guard(memory_lock);
  used[block->device] -= block->size;
  std::free(block->memory);
  delete block;
}

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto size = static_cast<int64_t>(bytes);
    std::lock_guard<std::mutex> guard(memory_lock);
    TORCH_CHECK_WITH(OutOfMemoryError, limit < 0 || used[current] + size <= limit, "standin out of memory. Tried to allocate ",
        size, " bytes; ", used[current], " of ", limit, " bytes are in use");
    used[current] += size;
    auto* block = new Block{bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr, size, current};
    return {block->memory, block, &release, standin(current)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

DeviceMemory device_memory;
REGISTER_ALLOCATOR(STANDIN, &device_memory)

std::unordered_set<const void*> pinned;

void unpin(void* memory) {
  std::lock_guard<std::mutex> guard(memory_lock);
  pinned.erase(memory);
  std::free(memory);
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
    std::lock_guard<std::mutex> guard(memory_lock);
    pinned.insert(memory);
    return {memory, memory, &unpin, Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &unpin;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

PinnedMemory pinned_memory;

// which device is current; there is one stream

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return STANDIN;
  }
  Device exchangeDevice(Device device) const override {
    auto before = standin(current);
    setDevice(device);
    return before;
  }
  Device getDevice() const override {
    return standin(current);
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < COUNT, "standin has ", int(COUNT), " devices, got number ", int(device.index()));
    current = device.index() < 0 ? current : device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    current = device.index() < 0 ? current : device.index();
  }
  Stream getStream(Device device) const noexcept override {
    return Stream(Stream::DEFAULT, device);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, device);
  }
  Stream exchangeStream(Stream stream) const noexcept override {
    return stream;
  }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    *event = &current;
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  bool queryStream(const Stream&) const override {
    return true;
  }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  DeviceIndex deviceCount() const noexcept override {
    return COUNT;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// random numbers: a state for each device

struct DeviceGenerator final : at::CPUGeneratorImpl {
  explicit DeviceGenerator(DeviceIndex index) {
    device_ = standin(index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  static c10::DeviceType device_type() {
    return STANDIN;
  }

 private:
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device_.index());
    copy->set_state(*get_state());
    return copy;
  }
};

at::Generator new_generator(DeviceIndex index) {
  return at::make_generator<DeviceGenerator>(index);
}
#if TORCH_VERSION_MINOR < 8 // newer versions ask the hooks below
REGISTER_GENERATOR_PRIVATEUSE1(new_generator)
#endif

const at::Generator& default_generator(DeviceIndex index) {
  static const at::Generator generators[COUNT] = {new_generator(0), new_generator(1)};
  return generators[standin(index).index()];
}

// Random operations of the CPU, drawing from the state of a device.
struct Borrowed {
  explicit Borrowed(at::Generator from) : generator(from), cpu(at::detail::getDefaultCPUGenerator()), before(cpu.get_state()) {
    cpu.set_state(generator.get_state());
  }
  ~Borrowed() {
    generator.set_state(cpu.get_state());
    cpu.set_state(before);
  }
  at::Generator generator, cpu;
  Tensor before;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  // the first two are overrides in newer versions of torch
  bool isBuilt() const {
    return true;
  }
  bool isAvailable() const {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return COUNT;
  }
  DeviceIndex getCurrentDevice() const override {
    return current;
  }
  void setCurrentDevice(DeviceIndex index) const override {
    current = index;
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return std::exchange(current, index);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return std::exchange(current, index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return new_generator(index);
  }
  Device getDeviceFromPtr(void*) const override {
    return standin(current);
  }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> guard(memory_lock);
    return pinned.count(data) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard on(storage.device());
    auto fresh = device_memory.allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// operations that a device must have itself

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard on(device.value_or(standin(-1)));
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &device_memory, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard on(device.value_or(standin(-1)));
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &device_memory, keys, c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& tensor, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard on(tensor.device());
  return at::native::resize_(tensor, size, format);
}

// The same memory as a tensor of the CPU.
Tensor seen_by_cpu(const Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  auto options = tensor.options().device(c10::kCPU).requires_grad(false).pinned_memory(false);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  seen_by_cpu(to).copy_(seen_by_cpu(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  return at::_local_scalar_dense(seen_by_cpu(tensor));
}

Tensor& set_storage(Tensor& tensor, at::Storage source) {
  auto length = static_cast<int64_t>(source.nbytes() / tensor.dtype().itemsize());
  return at::native::set_storage_cpu_(tensor, std::move(source), 0, {length}, {});
}

void require_one_device(const std::string& name, const torch::jit::Stack& stack, size_t arguments) {
  bool takes_indices_of_cpu = name.find("index") != std::string::npos;
  std::optional<Device> found;
  auto look = [&](const Tensor& tensor) {
    if (!tensor.defined() || (tensor.is_cpu() && (tensor.dim() == 0 || takes_indices_of_cpu))) {
      return;
    }
    TORCH_CHECK(!found || *found == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
        found->str(), " and ", tensor.device().str(), "! (in ", name, ")");
    found = tensor.device();
  };
  for (const auto& value : torch::jit::last(stack, arguments)) {
    if (value.isTensor()) {
      look(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) {
        look(tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
        look(tensor.value_or(Tensor()));
      }
    }
  }
}

void by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto arguments = schema.arguments().size();
  require_one_device(schema.name(), *stack, arguments);
  DeviceIndex index = current;
  std::optional<at::Generator> given;
  for (auto& value : torch::jit::last(*stack, arguments)) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == STANDIN) {
      index = value.toTensor().device().index();
    } else if (value.isGenerator()) {
      given = value.toGenerator();
    }
  }
  if (given) {
    TORCH_CHECK(given->device().type() == STANDIN, "Expected a 'standin' device type for generator but found '", given->device().str(), "'");
    for (size_t place = stack->size() - arguments; place < stack->size(); ++place) {
      if ((*stack)[place].isGenerator()) {
        (*stack)[place] = c10::IValue();
      }
    }
  }
  if (!given && !op.hasTag(at::Tag::nondeterministic_seeded)) {
    return at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  }
  Borrowed state(given ? *given : default_generator(index));
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

// Convolutions ask for a function of the device's own.

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  TORCH_CHECK(x.device() == weight.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
      x.device().str(), " and ", weight.device().str(), "! (in convolution)");
  std::optional<Tensor> b;
  if (bias && bias->defined()) {
    b = seen_by_cpu(*bias);
  }
  auto y = at::convolution_symint(seen_by_cpu(x), seen_by_cpu(weight), b, stride, padding, dilation, transposed, output_padding, groups);
  return y.to(x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> mask) {
  std::vector<c10::SymInt> bias{weight.sym_size(transposed ? 1 : 0) * (transposed ? groups : c10::SymInt(1))};
  auto [dx, dw, db] = at::convolution_backward_symint(seen_by_cpu(dy), seen_by_cpu(x), seen_by_cpu(weight), c10::SymIntArrayRef(bias), stride,
      padding, dilation, transposed, output_padding, groups, mask);
  auto back = [&](const Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

// Its schema does not say that it writes the running statistics, so the fallback would lose them.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& mean, const std::optional<Tensor>& variance, bool training, double momentum, double eps) {
  auto there = [&](const std::optional<Tensor>& t) -> std::optional<Tensor> {
    if (!t || !t->defined()) {
      return std::nullopt;
    }
    TORCH_CHECK(t->device() == x.device(), "Expected all tensors to be on the same device (in batch_norm)");
    return seen_by_cpu(*t);
  };
  auto [y, m, v] = at::native_batch_norm(
      seen_by_cpu(x), there(weight), there(bias), there(mean), there(variance), training, momentum, eps);
  return {y.to(x.device()), m.to(x.device()), v.to(x.device())};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
}

// functions for the Python side

TORCH_LIBRARY(standin, m) {
  m.def("device_count", []() -> int64_t { return COUNT; });
  m.def("current_device", []() -> int64_t { return current; });
  m.def("set_device(int index) -> ()", [](int64_t index) { Guard().setDevice(standin(DeviceIndex(index))); });
  m.def("get_rng_state(int index) -> Tensor", [](int64_t index) { return default_generator(DeviceIndex(index)).get_state(); });
  m.def("set_rng_state(int index, Tensor state) -> ()", [](int64_t index, const Tensor& state) {
    at::Generator generator = default_generator(DeviceIndex(index));
    generator.set_state(state);
  });
  m.def("manual_seed(int index, int seed) -> ()", [](int64_t index, int64_t seed) {
    at::Generator generator = default_generator(DeviceIndex(index));
    generator.set_current_seed(uint64_t(seed));
  });
  m.def("set_memory_limit(int bytes) -> ()", [](int64_t bytes) { limit = bytes; });
  m.def("memory_used(int index) -> int", [](int64_t index) { return used[index]; });
}

struct Registered {
  Registered() {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
  }
} registered;

} // namespace
