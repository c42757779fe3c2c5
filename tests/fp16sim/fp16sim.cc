// fp16sim: a custom device of Paddle 2.6 and 3.3 whose memory is host memory and whose
// float16 kernels are Paddle's own CPU float32 kernels, with inputs widened
// from and results rounded to IEEE half (overflow to inf, underflow to 0).
//
// One kernel with other inputs is registered too: "cast" to float16. Paddle's own CPU kernel cuts
// bits off where IEEE half, and a GPU, round to nearest (43 % of random numbers differ).
//
// Kernels of every other dtype are not registered: Paddle falls back to its
// CPU kernels for them (FLAGS_enable_api_kernel_fallback, on by default).
//
// How one wrapper serves every kernel: a phi kernel's C++ signature is always
// (context, inputs..., attributes..., outputs...). Under the x86-64 SysV ABI
// every input, output and non-float attribute takes one integer slot (6
// registers, then the stack) and floats take xmm registers, so with the
// argument counts from KernelArgsDef a trampoline can swap the tensor
// pointers and pass all other slots on untouched.
#if !defined(__x86_64__) || !defined(__linux__)
#error "fp16sim relies on the x86-64 SysV calling convention"
#endif
#include <immintrin.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "paddle/phi/config.h"  // sets the macros that fix DenseTensor's layout; must be first
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/device_ext.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/device_context.h"
#include "paddle/phi/core/kernel_context.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/utils/optional.h"

namespace {
constexpr char kType[] = "fp16sim";
using phi::DataType;
using phi::DenseTensor;
using OptT = paddle::optional<DenseTensor>;
using VecT = std::vector<const DenseTensor*>;
using OptVecT = paddle::optional<VecT>;
using OutVecT = std::vector<DenseTensor*>;

// The processor's own conversions: IEEE half, round to nearest even, subnormals kept.
using half = uint16_t;
#define FAST __attribute__((optimize("O2")))  // the rest runs seldom, and -O0 compiles in half the time
FAST void Widen(const half* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i))));
  for (; i < n; ++i) to[i] = _cvtsh_ss(from[i]);
}
FAST void Round(const float* from, half* to, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i*)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  for (; i < n; ++i) to[i] = _cvtss_sh(from[i], 0);
}

// ---------------------------------------------------------------- kernels
enum Kind : char { kOne, kOpt, kVec, kOptVec, kBad };

// Optimizers whose float32 master weight is an input, so many from the end, and the last output
// (Paddle 3 has one more moment in front): update the master, then round it to the parameter, the
// first of both.
struct Master { const char* name; int from_end; };
constexpr Master kMasters[] = {{"adamw", 2}, {"adam", 2}, {"sgd", 1}, {"momentum", 1}};

struct Slot {
  std::string name;
  phi::Kernel cpu;
  std::vector<Kind> in, out;
  std::vector<DataType> out_dtype;
  int first_out;
  int master = -1, master_out = -1;  // places among its inputs and outputs
  bool cast = false;
  long calls = 0;
};
// Never destroyed: it is read when the process ends.
std::deque<Slot>& Slots() { static auto& s = *new std::deque<Slot>; return s; }

constexpr int kStack = 26;
struct Args {
  long g[6]; double x[8]; long s[kStack];
  long& I(int k) { return k < 6 ? g[k] : s[k - 6]; }
};

struct Call {
  Slot& slot;
  const phi::DeviceContext& dev;
  phi::DeviceContext& cpu;
  std::deque<DenseTensor> tensors;
  std::deque<OptT> opts;
  std::deque<VecT> vecs;
  std::deque<OptVecT> optvecs;
  std::deque<OutVecT> outvecs;
  struct Out { DenseTensor *to, *from; DataType want; };
  std::vector<Out> outs;

  // A CPU tensor the float32 kernel can read: widened, or the same memory.
  const DenseTensor* View(const DenseTensor* t) {
    if (t == nullptr) return nullptr;
    phi::DenseTensorMeta meta = t->meta();
    meta.offset = 0;
    std::shared_ptr<phi::Allocation> none;
    if (!t->initialized()) {
      tensors.emplace_back(none, meta);
      return &tensors.back();
    }
    const int64_t n = t->numel();
    if (t->dtype() == DataType::FLOAT16) {
      meta.dtype = DataType::FLOAT32;
      tensors.emplace_back(none, meta);
      DenseTensor* w = &tensors.back();
      float* d = static_cast<float*>(cpu.Alloc(w, DataType::FLOAT32));
      Widen(static_cast<const half*>(t->data()), d, n);
      return w;
    }
    auto hold = std::make_shared<phi::Allocation>(
        const_cast<void*>(t->data()), n * phi::SizeOf(t->dtype()), phi::CPUPlace());
    tensors.emplace_back(hold, meta);
    return &tensors.back();
  }

  DenseTensor* Temp(DenseTensor* to, DataType def) {
    if (to == nullptr) return nullptr;
    tensors.emplace_back();
    DenseTensor* t = &tensors.back();
    phi::DenseTensorMeta meta = to->meta();
    meta.offset = 0;
    DataType want = meta.dtype;
    if (want == DataType::UNDEFINED && def == DataType::FLOAT32) want = DataType::FLOAT16;
    if (meta.dtype == DataType::FLOAT16) meta.dtype = DataType::FLOAT32;
    t->set_meta(meta);
    outs.push_back({to, t, want});
    return t;
  }

  void Store(DenseTensor* to, const DenseTensor& from, DataType want) {
    if (!from.initialized() && from.numel() != 0) return;  // not written
    const bool on_cpu = to->initialized() && to->place() == phi::CPUPlace();
    const bool round = from.dtype() == DataType::FLOAT32 && want == DataType::FLOAT16;
    to->Resize(from.dims());
    void* d = (on_cpu ? cpu : dev).Alloc(to, round ? DataType::FLOAT16 : from.dtype());
    const int64_t n = from.numel();
    if (n == 0) return;
    if (round) {
      Round(static_cast<const float*>(from.data()), static_cast<half*>(d), n);
    } else {
      std::memcpy(d, from.data(), n * phi::SizeOf(from.dtype()));
    }
  }


  void StoreAll(const DenseTensor* param_out, DenseTensor* master_out) {
    if (master_out) Store(master_out, *param_out, DataType::FLOAT32);
    for (auto& o : outs)
      if (o.to != master_out) Store(o.to, *o.from, o.want);
    ++slot.calls;
  }

  // Called from the C++ API (dynamic graph): arguments in registers and stack.
  void Run(Args& a) {
    const OptT* master = slot.master < 0 ? nullptr : reinterpret_cast<OptT*>(a.I(1 + slot.master));
    if (master && !*master) master = nullptr;
    for (size_t i = 0; i < slot.in.size(); ++i) {
      long& p = a.I(1 + i);
      if (slot.in[i] == kOne) {
        p = reinterpret_cast<long>(View(master && i == 0 ? &master->get()
                                                       : reinterpret_cast<DenseTensor*>(p)));
      } else if (slot.in[i] == kOpt) {
        auto* o = reinterpret_cast<OptT*>(p);
        if (*o) { opts.emplace_back(*View(&o->get())); p = reinterpret_cast<long>(&opts.back()); }
      } else {
        auto* o = reinterpret_cast<OptVecT*>(p);
        if (slot.in[i] == kOptVec && !*o) continue;
        const VecT& v = slot.in[i] == kVec ? *reinterpret_cast<VecT*>(p) : o->get();
        VecT w;
        for (auto* t : v) w.push_back(View(t));
        if (slot.in[i] == kVec) { vecs.push_back(w); p = reinterpret_cast<long>(&vecs.back()); }
        else { optvecs.emplace_back(w); p = reinterpret_cast<long>(&optvecs.back()); }
      }
    }
    DenseTensor *param_out = nullptr, *master_out = nullptr;
    for (size_t j = 0; j < slot.out.size(); ++j) {
      long& p = a.I(slot.first_out + j);
      if (slot.out[j] == kOne) {
        auto* o = reinterpret_cast<DenseTensor*>(p);
        DenseTensor* t = Temp(o, slot.out_dtype[j]);
        if (master && j == 0) param_out = t;
        if (master && int(j) == slot.master_out) master_out = o;
        p = reinterpret_cast<long>(t);
      } else {
        OutVecT w;
        for (auto* t : *reinterpret_cast<OutVecT*>(p)) w.push_back(Temp(t, slot.out_dtype[j]));
        outvecs.push_back(w);
        p = reinterpret_cast<long>(&outvecs.back());
      }
    }
    // The kernel casts to float32, Store rounds.
    if (slot.cast && static_cast<int>(a.I(2)) == static_cast<int>(DataType::FLOAT16))
      a.I(2) = static_cast<long>(DataType::FLOAT32);
    a.I(0) = reinterpret_cast<long>(&cpu);
    using L = long; using D = double;
    reinterpret_cast<void (*)(L, L, L, L, L, L, D, D, D, D, D, D, D, D, L, L, L, L, L, L, L, L, L,
                              L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L)>(slot.cpu.GetVariadicKernelFn<void*>())(
        a.g[0], a.g[1], a.g[2], a.g[3], a.g[4], a.g[5], a.x[0], a.x[1], a.x[2], a.x[3], a.x[4],
        a.x[5], a.x[6], a.x[7], a.s[0], a.s[1], a.s[2], a.s[3], a.s[4], a.s[5], a.s[6], a.s[7],
        a.s[8], a.s[9], a.s[10], a.s[11], a.s[12], a.s[13], a.s[14], a.s[15], a.s[16], a.s[17],
        a.s[18], a.s[19], a.s[20], a.s[21], a.s[22], a.s[23], a.s[24], a.s[25]);
    StoreAll(param_out, master_out);
  }

  // Called through a KernelContext (static graph, and ops still on the tracer).
  void Run(phi::KernelContext* c) {
    phi::KernelContext k(&cpu);
    auto at = [&](int i) {
      return static_cast<const DenseTensor*>(c->InputsBetween<phi::TensorBase>(i, i + 1)[0]);
    };
    const DenseTensor* master =
        slot.master < 0 ? nullptr : at(c->InputRangeAt(slot.master).first);
    for (size_t i = 0; i < slot.in.size(); ++i) {
      auto r = c->InputRangeAt(i);
      for (int j = r.first; j < r.second; ++j)
        k.EmplaceBackInputWithoutSetRange(View(master && i == 0 ? master : at(j)));
      k.AssignInputRange(std::move(r), i);
    }
    DenseTensor *param_out = nullptr, *master_out = nullptr;
    for (size_t i = 0; i < slot.out.size(); ++i) {
      auto r = c->OutputRangeAt(i);
      for (int j = r.first; j < r.second; ++j) {
        auto* o = static_cast<DenseTensor*>(c->MutableOutputAt(j));
        DenseTensor* t = Temp(o, slot.out_dtype[i]);
        if (master && i == 0) param_out = t;
        if (master && int(i) == slot.master_out) master_out = o;
        k.EmplaceBackOutputWithoutSetRange(t);
      }
      k.AssignOutputRange(std::move(r), i);
    }
    for (size_t i = 0; i < c->AttrsSize(); ++i) {
      if (slot.cast && c->AttrAt<DataType>(i) == DataType::FLOAT16)
        k.EmplaceBackAttr(DataType::FLOAT32);
      else
        k.EmplaceBackAttr(c->AttrAt(i));
    }
    slot.cpu(&k);
    StoreAll(param_out, master_out);
  }
};

phi::DeviceContext& Cpu() { return *phi::DeviceContextPool::Instance().Get(phi::CPUPlace()); }

template <int N>
void FromContext(phi::KernelContext* c) {
  Call{Slots()[N], c->GetDeviceContext<phi::DeviceContext>(), Cpu()}.Run(c);
}

template <int N>
void Trampoline(long g0, long g1, long g2, long g3, long g4, long g5, double x0, double x1,
                double x2, double x3, double x4, double x5, double x6, double x7, long s0, long s1,
                long s2, long s3, long s4, long s5, long s6, long s7, long s8, long s9, long s10,
                long s11, long s12, long s13, long s14, long s15, long s16, long s17, long s18,
                long s19, long s20, long s21, long s22, long s23, long s24, long s25) {
  Args a{{g0, g1, g2, g3, g4, g5}, {x0, x1, x2, x3, x4, x5, x6, x7},
         {s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15, s16, s17, s18,
          s19, s20, s21, s22, s23, s24, s25}};
  Call{Slots()[N], *reinterpret_cast<const phi::DeviceContext*>(g0), Cpu()}.Run(a);
}

constexpr int kMaxSlots = 1024;
template <int... N>
std::vector<phi::Kernel> Table(std::integer_sequence<int, N...>) {
  return {phi::Kernel(&FromContext<N>, reinterpret_cast<void*>(&Trampoline<N>))...};
}

Kind KindOf(std::type_index t) {
  if (t == typeid(const DenseTensor&) || t == typeid(DenseTensor*)) return kOne;
  if (t == typeid(const OptT&)) return kOpt;
  if (t == typeid(const VecT&) || t == typeid(OutVecT)) return kVec;
  if (t == typeid(const OptVecT&)) return kOptVec;
  return kBad;
}

// Does libpaddle's DenseTensor have the size this file was compiled with?
bool LayoutMatches() {
  constexpr size_t kCap = sizeof(DenseTensor) + 1024;
  alignas(16) static unsigned char buf[2][kCap];
  size_t end = 0;
  for (int k = 0; k < 2; ++k) {
    memset(buf[k], k ? 0xff : 0x00, kCap);
    (new (buf[k]) DenseTensor())->~DenseTensor();
  }
  for (size_t i = 0; i < kCap; ++i) if (buf[0][i] == buf[1][i]) end = i + 1;
  return end == sizeof(DenseTensor);
}

void RegisterKernels() {
  if (!LayoutMatches()) {
    std::fprintf(stderr, "fp16sim: built for another Paddle; no float16 kernels\n");
    return;
  }
  static const auto table = Table(std::make_integer_sequence<int, kMaxSlots>());
  const auto backend = static_cast<phi::Backend>(
      static_cast<size_t>(phi::Backend::NUM_BACKENDS) +
      phi::CustomRegisteredDeviceMap::Instance().GetOrRegisterGlobalDeviceTypeId(kType));
  // A kernel of the device for inputs of type `of`, around the CPU's kernel `cpu`.
  auto add = [&](const std::string& op, phi::KernelKeyMap& kernels, const phi::Kernel cpu,
                 DataType of) {
    const phi::KernelKey to(backend, phi::DataLayout::ALL_LAYOUT, of);
    if (kernels.count(to)) return;
    if (cpu.GetKernelRegisteredType() != phi::KernelRegisteredType::FUNCTION) return;
    // Only float16 kernels are counted, by name.
    Slot s{of == DataType::FLOAT16 ? op : "", cpu, {}, {}, {}, 1};
    bool ok = Slots().size() < kMaxSlots;
    int floats = 0;
    for (auto& d : cpu.args_def().input_defs()) s.in.push_back(KindOf(d.type_index));
    for (auto& d : cpu.args_def().attribute_defs())
      if (d.type_index == phi::AttributeType::FLOAT32 || d.type_index == phi::AttributeType::FLOAT64) ++floats;
    for (auto& d : cpu.args_def().output_defs()) {
      s.out.push_back(KindOf(d.type_index));
      s.out_dtype.push_back(d.dtype);
    }
    s.first_out = 1 + s.in.size() + cpu.args_def().attribute_defs().size() - floats;
    for (Kind k : s.in) ok &= k != kBad;
    for (Kind k : s.out) ok &= k != kBad;
    ok &= floats <= 8 && s.first_out + int(s.out.size()) <= 6 + kStack;
    if (!ok) return;
    for (auto& m : kMasters)
      if (op == m.name) s.master = s.in.size() - m.from_end, s.master_out = s.out.size() - 1;
    s.cast = op == "cast";
    phi::Kernel k = table[Slots().size()];
    *k.mutable_args_def() = cpu.args_def();
    for (auto& d : k.mutable_args_def()->input_defs())
      if (d.backend == phi::Backend::CPU) d.backend = backend;
    for (auto& d : k.mutable_args_def()->output_defs()) {
      if (d.backend == phi::Backend::CPU) d.backend = backend;
      if (of == DataType::FLOAT16 && d.dtype == DataType::FLOAT32) d.dtype = DataType::FLOAT16;
    }
    Slots().push_back(std::move(s));
    kernels[to] = k;
  };
  auto of_cpu = [](phi::KernelKeyMap& kernels, DataType type) {
    return kernels.find({phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, type});
  };
  for (auto& entry : phi::KernelFactory::Instance().kernels()) {
    auto& kernels = entry.second;
    auto it = of_cpu(kernels, DataType::FLOAT32);
    if (it != kernels.end()) add(entry.first, kernels, it->second, DataType::FLOAT16);
    if (entry.first != "cast") continue;
    for (auto type : {DataType::FLOAT32, DataType::INT32, DataType::INT64, DataType::BOOL})
      add(entry.first, kernels, of_cpu(kernels, type)->second, type);
  }
}

// ----------------------------------------------------------------- device
C_Status Ok() { return C_SUCCESS; }
C_Status OnDevice(const C_Device) { return C_SUCCESS; }
C_Status GetDevice(const C_Device d) { d->id = 0; return C_SUCCESS; }
C_Status MakeStream(const C_Device, C_Stream* s) { *s = nullptr; return C_SUCCESS; }
C_Status OnStream(const C_Device, C_Stream) { return C_SUCCESS; }
C_Status Callback(const C_Device d, C_Stream s, C_Callback f, void* u) {
  C_Status r = C_SUCCESS; f(d, s, u, &r); return r;
}
C_Status MakeEvent(const C_Device, C_Event* e) { *e = nullptr; return C_SUCCESS; }
C_Status OnEvent(const C_Device, C_Event) { return C_SUCCESS; }
C_Status OnBoth(const C_Device, C_Stream, C_Event) { return C_SUCCESS; }
C_Status Allocate(const C_Device, void** p, size_t n) {
  return posix_memalign(p, 64, n ? n : 64) == 0 ? C_SUCCESS : C_FAILED;
}
C_Status Free(const C_Device, void* p, size_t) { free(p); return C_SUCCESS; }
C_Status Set(const C_Device, void* p, unsigned char v, size_t n) { memset(p, v, n); return C_SUCCESS; }
C_Status Copy(const C_Device, void* d, const void* s, size_t n) { memmove(d, s, n); return C_SUCCESS; }
C_Status CopyAsync(const C_Device, C_Stream, void* d, const void* s, size_t n) { memmove(d, s, n); return C_SUCCESS; }
C_Status Count(size_t* n) { *n = 1; return C_SUCCESS; }
C_Status List(size_t* d) { d[0] = 0; return C_SUCCESS; }
C_Status Stats(const C_Device, size_t* total, size_t* free) { *total = *free = size_t(4) << 30; return C_SUCCESS; }
C_Status Chunk(const C_Device, size_t* n) { *n = 64; return C_SUCCESS; }

template <class T> FAST void Axpby(size_t n, float alpha, const void* x, float beta, void* y) {
  auto* a = static_cast<const T*>(x); auto* b = static_cast<T*>(y);
  for (size_t i = 0; i < n; ++i) b[i] = static_cast<T>(alpha * a[i] + beta * b[i]);
}
// Paddle adds gradients through this, not through the "add" kernel.
C_Status AxpbyAny(const C_Device, C_Stream, C_DataType t, size_t n, float alpha, void* x, float beta, void* y) {
  if (t == FLOAT16) {
    std::vector<float> a(n), b(n);
    Widen(static_cast<half*>(x), a.data(), n);
    Widen(static_cast<half*>(y), b.data(), n);
    Axpby<float>(n, alpha, a.data(), beta, b.data());
    Round(b.data(), static_cast<half*>(y), n);
  } else if (t == FLOAT32) Axpby<float>(n, alpha, x, beta, y);
  else if (t == FLOAT64) Axpby<double>(n, alpha, x, beta, y);
  else return C_FAILED;
  return C_SUCCESS;
}
}  // namespace

// For tests: how often a float16 kernel ran, or -1 if there is none.
extern "C" long fp16sim_calls(const char* name) {
  for (auto& s : Slots()) if (s.name == name) return s.calls;
  return -1;
}
// For tests: at the end of the process, "name calls" of each float16 kernel that ran, a line each,
// into the file named by FP16SIM_CALLS.
void WriteCalls() {
  const char* path = std::getenv("FP16SIM_CALLS");
  FILE* file = path && *path ? std::fopen(path, "w") : nullptr;
  if (!file) return;
  for (auto& s : Slots()) if (s.calls && !s.name.empty()) std::fprintf(file, "%s %ld\n", s.name.c_str(), s.calls);
  std::fclose(file);
}

extern "C" void InitPlugin(CustomRuntimeParams* p) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(p);
  p->device_type = const_cast<char*>(kType);
  p->sub_device_type = const_cast<char*>("v0.1");
  C_DeviceInterface& f = *p->interface;
  memset(&f, 0, sizeof(f));
  f.initialize = f.finalize = Ok;
  f.init_device = f.set_device = f.deinit_device = f.synchronize_device = OnDevice;
  f.get_device = GetDevice;
  f.create_stream = MakeStream;
  f.destroy_stream = f.query_stream = f.synchronize_stream = OnStream;
  f.stream_add_callback = Callback;
  f.create_event = MakeEvent;
  f.destroy_event = f.query_event = f.synchronize_event = OnEvent;
  f.record_event = f.stream_wait_event = OnBoth;
  f.device_memory_allocate = f.host_memory_allocate = f.unified_memory_allocate = Allocate;
  f.device_memory_deallocate = f.host_memory_deallocate = f.unified_memory_deallocate = Free;
  f.device_memory_set = Set;
  f.memory_copy_h2d = f.memory_copy_d2h = f.memory_copy_d2d = Copy;
  f.async_memory_copy_h2d = f.async_memory_copy_d2h = f.async_memory_copy_d2d = CopyAsync;
  f.get_device_count = Count;
  f.get_device_list = List;
  f.device_memory_stats = Stats;
  f.device_min_chunk_size = Chunk;
  f.blas_axpby = AxpbyAny;
  RegisterKernels();
  std::atexit(WriteCalls);
}
