// SPDX-License-Identifier: Apache-2.0
// The C functions over the SDK's classes. No exception leaves them.
#include "worker_sdk/c/ddprun_c.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/process_facts.h"
#include "common/socket.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "common/unique_fd.h"
#include "rendezvous/store/tcp_store.h"
#include "worker_sdk/core/exchange.h"
#include "worker_sdk/core/host/host_communicator.h"
#include "worker_sdk/core/session.h"

struct ddprun_worker {
  std::unique_ptr<ddprun::Session> session;
};

struct ddprun_store {
  std::shared_ptr<ddprun::store::Store> store;  // shared with communicators over it
};

struct ddprun_comm {
  std::unique_ptr<ddprun::Communicator> communicator;
  bool is_in_group = false;
  std::exception_ptr refused;  // error of a refused call in the open group
};

struct ddprun_work {
  ddprun::WorkPtr work;
};

// Bytes that a function of ddprun_store_calls returns.
struct ddprun_reply {
  std::string bytes;
};

namespace ddprun::c {
namespace {

static_assert(static_cast<int>(ErrorCode::kInvalidArgument) + 1 == DDPRUN_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::kSystem) + 1 == DDPRUN_SYSTEM);
static_assert(static_cast<int>(DType::kFloat8E5M2) == DDPRUN_FLOAT8_E5M2);
static_assert(static_cast<int>(ReduceOp::kProduct) == DDPRUN_PRODUCT);
static_assert(static_cast<int>(ProgressPhase::kTearDown) == DDPRUN_TEAR_DOWN);

// This tag keeps all_to_all's messages from the program's own receives.
constexpr int kExchangeTag = -1;

thread_local std::string error_text;

template <typename Body>
int status_of(const Body& body) noexcept {
  try {
    body();
    return DDPRUN_OK;
  } catch (const Error& error) {
    error_text = error.what();
    return static_cast<int>(error.code()) + 1;
  } catch (const std::bad_alloc&) {
    error_text = "no memory";
    return DDPRUN_RESOURCE_EXHAUSTED;
  } catch (const std::exception& error) {
    error_text = error.what();
    return DDPRUN_SYSTEM;
  }
}

void require(bool condition, const char* what) {
  if (!condition) throw_invalid(what);
}

template <typename T>
T& checked(T* object, const char* what) {
  require(object != nullptr, what);
  return *object;
}

store::Store& store_of(ddprun_store* store) { return *checked(store, "no store").store; }
WorkerProgress& progress_of(ddprun_worker* worker) {
  return checked(worker, "no worker").session->progress();
}

std::chrono::milliseconds timeout_of(std::int64_t milliseconds) {
  return milliseconds > 0 ? std::chrono::milliseconds(milliseconds) : kDefaultTimeout;
}

TensorView view_of(const ddprun_buffer& buffer) {
  require(buffer.dtype >= 0 && buffer.dtype < static_cast<int>(kNumDTypes), "no such dtype");
  return {.data = buffer.data, .count = buffer.count, .dtype = static_cast<DType>(buffer.dtype)};
}

ReduceOp op_of(int op) {
  require(op >= DDPRUN_SUM && op <= DDPRUN_PRODUCT, "no such reduce op");
  return static_cast<ReduceOp>(op);
}

CallOptions options_of(const ddprun_call* call, bool async) {
  CallOptions options;
  options.async = async;
  if (call == nullptr) return options;
  require(call->tag >= 0, "a negative tag");
  if (call->timeout_ms > 0) options.timeout = std::chrono::milliseconds(call->timeout_ms);
  options.tag = call->tag;
  return options;
}

// Runs an operation of a communicator, and keeps its Work if the caller asks for it.
template <typename Start>
int operate(ddprun_comm* comm, const ddprun_call* call, ddprun_work** work, const Start& start) {
  const int status = status_of([&] {
    Communicator& communicator = *checked(comm, "no communicator").communicator;
    std::unique_ptr<ddprun_work> made;
    if (work != nullptr) made = std::make_unique<ddprun_work>();
    WorkPtr started = start(communicator, options_of(call, work != nullptr));
    if (!made) return;
    require(!comm->is_in_group, "a call in a group has no work of its own");
    made->work = std::move(started);
    *work = made.release();
  });
  if (status != DDPRUN_OK && comm != nullptr && comm->is_in_group && !comm->refused) {
    comm->refused = std::make_exception_ptr(Error(static_cast<ErrorCode>(status - 1), error_text));
  }
  return status;
}

void hand_over(const std::string& bytes, char** value, size_t* size) {
  auto* copy = static_cast<char*>(std::malloc(bytes.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, bytes.c_str(), bytes.size() + 1);
  *value = copy;
  *size = bytes.size();
}

// Makes a C program's own store a Store of the SDK. It refuses operations that no communicator
// needs.
class ForeignStore final : public store::Store {
 public:
  ForeignStore(const ddprun_store_calls& calls, void* context) : calls_(calls), context_(context) {}

  std::unique_ptr<Store> clone() override {
    auto other = std::make_unique<ForeignStore>(calls_, context_);
    other->set_timeout(timeout_);
    return other;
  }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void set(std::string_view key, std::string_view value) override {
    call("set", key, [&](ddprun_reply* reply) {
      return calls_.set(context_, key.data(), key.size(), value.data(), value.size(), reply);
    });
  }

  std::string get(std::string_view key) override {
    wait({std::string(key)});
    return call("get", key, [&](ddprun_reply* reply) {
      return calls_.get(context_, key.data(), key.size(), reply);
    });
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    std::int64_t sum = 0;
    call("add", key, [&](ddprun_reply* reply) {
      return calls_.add(context_, key.data(), key.size(), delta, &sum, reply);
    });
    return sum;
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return call("compare_set", key, [&](ddprun_reply* reply) {
      return calls_.compare_set(context_, key.data(), key.size(), expected.data(), expected.size(),
                                desired.data(), desired.size(), reply);
    });
  }

  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      int exists = 0;
      call("check", key, [&](ddprun_reply* reply) {
        return calls_.check(context_, key.data(), key.size(), &exists, reply);
      });
      if (exists == 0) return false;
    }
    return true;
  }

  void wait(const std::vector<std::string>& keys) override {
    const Deadline deadline = Deadline::after(timeout_);
    for (const std::string& key : keys) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
      call("wait", key, [&](ddprun_reply* reply) {
        return calls_.wait(context_, key.data(), key.size(), left.count(), reply);
      });
    }
  }

  bool delete_key(std::string_view key) override {
    int existed = 0;
    call("delete_key", key, [&](ddprun_reply* reply) {
      return calls_.delete_key(context_, key.data(), key.size(), &existed, reply);
    });
    return existed != 0;
  }

  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    wait(keys);
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(get(key));
    return values;
  }

  std::int64_t num_keys() override { refuse("num_keys"); }
  std::vector<std::string> list_keys() override { refuse("list_keys"); }
  void append(std::string_view, std::string_view) override { refuse("append"); }
  void multi_set(const std::vector<std::pair<std::string, std::string>>&) override {
    refuse("multi_set");
  }
  void queue_push(std::string_view, std::string_view) override { refuse("queue_push"); }
  std::string queue_pop(std::string_view) override { refuse("queue_pop"); }
  std::optional<std::string> try_queue_pop(std::string_view) override { refuse("queue_pop"); }
  std::int64_t queue_len(std::string_view) override { refuse("queue_len"); }
  void barrier(std::string_view, std::int64_t) override { refuse("barrier"); }

 private:
  [[noreturn]] static void refuse(const char* operation) {
    throw_error(ErrorCode::kUnsupported, operation,
                ": a store of the program's own has no such call here");
  }

  // Returns the reply, or throws the error that the status means.
  std::string call(const char* operation, std::string_view key,
                   const std::function<int(ddprun_reply*)>& make) const {
    ddprun_reply reply;
    const int status = make(&reply);
    if (status == DDPRUN_OK) return std::move(reply.bytes);
    const bool is_known = status > DDPRUN_OK && status <= DDPRUN_SYSTEM;
    throw Error(is_known ? static_cast<ErrorCode>(status - 1) : ErrorCode::kConnectionLost,
                concat("the program's store, ", operation, "(", key,
                       "): ", reply.bytes.empty() ? concat("status ", status) : reply.bytes));
  }

  const ddprun_store_calls calls_;
  void* const context_;
  std::chrono::milliseconds timeout_{300'000};
};

std::string variable_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string own_identity() {
  struct stat network {};
  ::stat("/proc/self/ns/net", &network);
  return concat(boot_id(), " ", network.st_ino, " ", variable_of(env::kGroupRank));
}

// Returns the address from which MASTER_ADDR is reached. Nothing is sent.
std::string own_address() {
  const std::string given = variable_of(env::kNodeAddr);
  if (!given.empty()) return given;
  const std::string master = variable_of(env::kMasterAddr);
  if (master.empty()) return "";
  try {
    for (const SocketAddress& address : resolve({.host = master, .port = kDefaultMasterPort})) {
      const UniqueFd fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      const auto* peer = reinterpret_cast<const sockaddr*>(&address.storage);
      if (fd && ::connect(fd.get(), peer, address.length) == 0) {
        return local_address(fd.get()).host_text();
      }
    }
  } catch (const Error&) {  // the host doesn't exist
  }
  return "";
}

struct NodePlace {
  int node_rank = 0;    // the same on ranks that can share memory
  std::string address;  // this node's address for other nodes; empty: not known
};

// Collective over the `size` ranks that share `key_prefix`. Ranks are on one node if the boot of
// the machine, the network namespace and GROUP_RANK (if set) are the same. Throws the store's
// errors; Error(kTimeout) names ranks that did not come.
NodePlace agree_on_nodes(store::Store& store, const std::string& key_prefix, int rank, int size) {
  std::vector<std::string> keys;
  for (int other = 0; other < size; ++other) keys.push_back(concat(key_prefix, "node/", other));
  store.set(keys[static_cast<std::size_t>(rank)], own_identity());
  std::map<std::string, int> nodes;  // numbered by their first ranks
  NodePlace place{.node_rank = 0, .address = own_address()};
  try {
    const std::vector<std::string> identities = store.multi_get(keys);
    for (int other = 0; other < size; ++other) {
      const auto& identity = identities[static_cast<std::size_t>(other)];
      const int node = nodes.emplace(identity, static_cast<int>(nodes.size())).first->second;
      if (other == rank) place.node_rank = node;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    std::string missing;
    for (int other = 0; other < size; ++other) {
      if (store.check({keys[static_cast<std::size_t>(other)]})) continue;
      missing += concat(missing.empty() ? "" : ", ", other);
    }
    throw_error(ErrorCode::kTimeout, "the start of the communicator timed out after ",
                store.timeout().count(), " ms: ranks that did not come: ", missing);
  }
  return place;
}

}  // namespace
}  // namespace ddprun::c

using namespace ddprun;     // NOLINT(google-build-using-namespace): the functions are C's
using namespace ddprun::c;  // NOLINT(google-build-using-namespace)

const char* ddprun_error_text(void) { return error_text.c_str(); }

int ddprun_worker_create(ddprun_worker** worker) {
  return status_of([&] { *worker = new ddprun_worker{Session::from_env()}; });
}

void ddprun_worker_destroy(ddprun_worker* worker) { delete worker; }

int ddprun_worker_place(const ddprun_worker* worker, ddprun_place* place) {
  return status_of([&] {
    const WorkerEnv& env = checked(worker, "no worker").session->env();
    *place = {.rank = env.rank,
              .local_rank = env.local_rank,
              .world_size = env.world_size,
              .local_world_size = env.local_world_size,
              .node_rank = env.node_rank,
              .num_nodes = env.num_nodes,
              .restart_count = env.restart_count,
              .round = env.round};
  });
}

int ddprun_worker_begin_step(ddprun_worker* worker, uint64_t step) {
  return status_of([&] { progress_of(worker).begin_step(step); });
}

int ddprun_worker_end_step(ddprun_worker* worker) {
  return status_of([&] { progress_of(worker).end_step(); });
}

int ddprun_worker_set_phase(ddprun_worker* worker, int phase) {
  return status_of([&] {
    require(phase >= DDPRUN_START_UP && phase <= DDPRUN_TEAR_DOWN, "no such phase");
    progress_of(worker).set_phase(static_cast<ProgressPhase>(phase));
  });
}

int ddprun_worker_report(ddprun_worker* worker, double loss, uint64_t num_samples) {
  return status_of([&] { progress_of(worker).report(loss, num_samples); });
}

int ddprun_worker_should_stop(ddprun_worker* worker, uint64_t step, int* stop) {
  return status_of(
      [&] { *stop = checked(worker, "no worker").session->should_stop(step) ? 1 : 0; });
}

void ddprun_reply_set(ddprun_reply* reply, const char* data, size_t size) {
  status_of([&] { reply->bytes.assign(data, size); });
}

int ddprun_store_create_of_worker(ddprun_worker* worker, ddprun_store** store) {
  return status_of([&] {
    Session& session = *checked(worker, "no worker").session;
    const std::shared_ptr<void> owned_by_session;
    *store = new ddprun_store{std::shared_ptr<store::Store>(owned_by_session, &session.store())};
  });
}

int ddprun_store_connect(const char* host, int port, int64_t timeout_ms, ddprun_store** store) {
  return status_of([&] {
    require(host != nullptr && port > 0 && port < 65'536, "no such endpoint");
    const store::TcpStoreOptions options{.timeout = timeout_of(timeout_ms)};
    const Endpoint endpoint{.host = host, .port = static_cast<std::uint16_t>(port)};
    *store = new ddprun_store{std::make_shared<store::TcpStore>(endpoint, options)};
  });
}

int ddprun_store_create_over(const ddprun_store_calls* calls, void* context, ddprun_store** store) {
  return status_of([&] {
    *store = new ddprun_store{std::make_shared<ForeignStore>(checked(calls, "no calls"), context)};
  });
}

void ddprun_store_destroy(ddprun_store* store) { delete store; }

int ddprun_store_set_timeout(ddprun_store* store, int64_t timeout_ms) {
  return status_of([&] { store_of(store).set_timeout(std::chrono::milliseconds(timeout_ms)); });
}

int ddprun_store_set(ddprun_store* store, const char* key, const void* value, size_t size) {
  return status_of([&] { store_of(store).set(key, {static_cast<const char*>(value), size}); });
}

int ddprun_store_get(ddprun_store* store, const char* key, char** value, size_t* size) {
  return status_of([&] { hand_over(store_of(store).get(key), value, size); });
}

int ddprun_store_add(ddprun_store* store, const char* key, int64_t delta, int64_t* sum) {
  return status_of([&] { *sum = store_of(store).add(key, delta); });
}

int ddprun_store_compare_set(ddprun_store* store, const char* key, const char* expected,
                             const char* desired, char** value, size_t* size) {
  return status_of(
      [&] { hand_over(store_of(store).compare_set(key, expected, desired), value, size); });
}

int ddprun_store_check(ddprun_store* store, const char* key, int* exists) {
  return status_of([&] { *exists = store_of(store).check({key}) ? 1 : 0; });
}

int ddprun_store_wait(ddprun_store* store, const char* key) {
  return status_of([&] { store_of(store).wait({key}); });
}

int ddprun_store_delete(ddprun_store* store, const char* key, int* existed) {
  return status_of([&] { *existed = store_of(store).delete_key(key) ? 1 : 0; });
}

void ddprun_free(void* memory) { std::free(memory); }

int ddprun_comm_create(ddprun_worker* worker, int64_t timeout_ms, ddprun_comm** comm) {
  return status_of([&] {
    CommunicatorOptions options;
    options.timeout = timeout_of(timeout_ms);
    auto made = std::make_unique<ddprun_comm>();
    Session& session = *checked(worker, "no worker").session;
    made->communicator = session.make_communicator(BackendChoice::kHost, options);
    *comm = made.release();
  });
}

int ddprun_comm_create_over(ddprun_store* store, const ddprun_comm_options* options,
                            ddprun_comm** comm) {
  return status_of([&] {
    const ddprun_comm_options& its = checked(options, "no options");
    require(its.key_prefix != nullptr && its.size > 0 && its.rank >= 0 && its.rank < its.size,
            "no key prefix, or a rank that can't be");
    store::Store& meeting = store_of(store);
    meeting.set_timeout(timeout_of(its.init_timeout_ms));
    const NodePlace place = agree_on_nodes(meeting, its.key_prefix, its.rank, its.size);
    auto made = std::make_unique<ddprun_comm>();
    made->communicator =
        host::make_host_communicator(meeting, {.rank = its.rank,
                                               .size = its.size,
                                               .node_rank = place.node_rank,
                                               .node_addr = place.address,
                                               .key_prefix = its.key_prefix,
                                               .timeout = timeout_of(its.timeout_ms),
                                               .init_timeout = timeout_of(its.init_timeout_ms),
                                               .several_threads = true,
                                               .split_store = store->store});
    *comm = made.release();
  });
}

int ddprun_comm_split(ddprun_comm* comm, const int* ranks, int num_ranks, const char* name,
                      ddprun_comm** group) {
  return status_of([&] {
    require(ranks != nullptr && num_ranks > 0 && name != nullptr, "no ranks, or no name");
    auto made = std::make_unique<ddprun_comm>();
    made->communicator = checked(comm, "no communicator")
                             .communicator->split({ranks, ranks + num_ranks}, {.name = name});
    *group = made.release();
  });
}

void ddprun_comm_destroy(ddprun_comm* comm) { delete comm; }

int ddprun_comm_rank(const ddprun_comm* comm) { return comm->communicator->rank(); }
int ddprun_comm_size(const ddprun_comm* comm) { return comm->communicator->size(); }

void ddprun_comm_abort(ddprun_comm* comm, const char* reason) {
  status_of([&] {
    checked(comm, "no communicator")
        .communicator->abort(reason != nullptr ? reason : "no reason was given");
  });
}

int ddprun_all_reduce(ddprun_comm* comm, ddprun_buffer buffer, int op, const ddprun_call* call,
                      ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.all_reduce(view_of(buffer), op_of(op), options);
  });
}

int ddprun_reduce(ddprun_comm* comm, ddprun_buffer buffer, int op, int root,
                  const ddprun_call* call, ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.reduce(view_of(buffer), op_of(op), root, options);
  });
}

int ddprun_broadcast(ddprun_comm* comm, ddprun_buffer buffer, int root, const ddprun_call* call,
                     ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.broadcast(view_of(buffer), root, options);
  });
}

int ddprun_all_gather(ddprun_comm* comm, ddprun_buffer input, ddprun_buffer output,
                      const ddprun_call* call, ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.all_gather(view_of(input), view_of(output), options);
  });
}

int ddprun_reduce_scatter(ddprun_comm* comm, ddprun_buffer input, ddprun_buffer output, int op,
                          const ddprun_call* call, ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.reduce_scatter(view_of(input), view_of(output), op_of(op), options);
  });
}

int ddprun_send(ddprun_comm* comm, ddprun_buffer buffer, int peer, const ddprun_call* call,
                ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.send(view_of(buffer), peer, options);
  });
}

int ddprun_recv(ddprun_comm* comm, ddprun_buffer buffer, int peer, const ddprun_call* call,
                ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.recv(view_of(buffer), peer, options);
  });
}

int ddprun_recv_any(ddprun_comm* comm, ddprun_buffer buffer, int* source, const ddprun_call* call,
                    ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    return communicator.recv_any(view_of(buffer), source, options);
  });
}

int ddprun_all_to_all(ddprun_comm* comm, const ddprun_buffer* inputs, const ddprun_buffer* outputs,
                      const ddprun_call* call, ddprun_work** work) {
  return operate(comm, call, work, [&](Communicator& communicator, const CallOptions& options) {
    CallOptions apart = options;
    apart.tag = kExchangeTag;
    std::vector<TensorView> from, to;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      from.push_back(view_of(inputs[rank]));
      to.push_back(view_of(outputs[rank]));
    }
    return all_to_all(communicator, from, to, apart);
  });
}

int ddprun_barrier(ddprun_comm* comm, const ddprun_call* call) {
  return operate(comm, call, nullptr, [&](Communicator& communicator, const CallOptions& options) {
    communicator.barrier(options);
    return WorkPtr();
  });
}

int ddprun_group(ddprun_comm* comm, void (*calls)(void* context), void* context,
                 ddprun_work** work) {
  return operate(comm, nullptr, work, [&](Communicator& communicator, const CallOptions& options) {
    const auto run = [&] {
      comm->refused = nullptr;
      comm->is_in_group = true;
      calls(context);
      comm->is_in_group = false;
      if (comm->refused) std::rethrow_exception(comm->refused);
    };
    return communicator.group(run, options.async);
  });
}

int ddprun_work_wait(ddprun_work* work) {
  return status_of([&] { checked(work, "no work").work->wait(); });
}

int ddprun_work_test(ddprun_work* work, int* is_done) {
  return status_of([&] { *is_done = checked(work, "no work").work->is_completed() ? 1 : 0; });
}

void ddprun_work_destroy(ddprun_work* work) { delete work; }
