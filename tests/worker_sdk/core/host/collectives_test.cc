// SPDX-License-Identifier: Apache-2.0
// Every operation of the host communicator, on one node and several, against a plain reference.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/sanitizers.h"
#include "tests/worker_sdk/core/exchange_checks.h"
#include "tests/worker_sdk/core/host/rank_threads.h"
#include "tests/worker_sdk/core/host/reference.h"

using namespace ddprun;
using namespace ddprun::host;
using ddprun::test::Contains;
using ddprun::test::expect;

namespace {

TensorView view(std::vector<std::byte>& bytes, DType dtype) {
  return {.data = bytes.data(), .count = bytes.size() / size_of(dtype), .dtype = dtype};
}

std::vector<std::byte> inputs(int rank, std::size_t count, unsigned seed, ReduceOp op,
                              DType dtype) {
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) put(bytes, i, dtype, input_value(rank, i, seed, op));
  return bytes;
}

std::vector<std::byte> reduced(int world, std::size_t count, unsigned seed, ReduceOp op,
                               DType dtype) {
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    put(bytes, i, dtype, expected_value(world, i, seed, op, dtype));
  }
  return bytes;
}

// Between nodes, sums of 8 bits and averages of 16 bits are rounded before each hop.
bool is_rounded(DType dtype, ReduceOp op) {
  const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  if (op == ReduceOp::kAverage) return is_half || is_float8(dtype);
  return op == ReduceOp::kSum && is_float8(dtype);
}

bool nearly_equal(const std::vector<std::byte>& p, const std::vector<std::byte>& q, DType dtype) {
  const double epsilon = dtype == DType::kFloat8E4M3   ? 0x1p-4
                         : dtype == DType::kFloat8E5M2 ? 0x1p-3
                         : dtype == DType::kBFloat16   ? 0x1p-8
                                                       : 0x1p-11;
  const auto at = [&](const std::vector<std::byte>& bytes, std::size_t i) {
    return test::load_element(bytes.data(), i, dtype);
  };
  for (std::size_t i = 0; i < p.size() / size_of(dtype); ++i) {
    if (!(std::abs(at(p, i) - at(q, i)) <= 4 * epsilon * std::abs(at(q, i)))) return false;
  }
  return p.size() == q.size();
}

// Whether all ranks have the same bits.
bool same_everywhere(Communicator& world, std::vector<std::byte>& bytes) {
  std::vector<std::byte> all(bytes.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(view(bytes, DType::kUInt8), view(all, DType::kUInt8));
  for (std::size_t begin = 0; begin < all.size(); begin += bytes.size()) {
    if (std::memcmp(all.data() + begin, bytes.data(), bytes.size()) != 0) return false;
  }
  return true;
}

void check_all_reduce(Communicator& world, DType dtype, ReduceOp op, std::size_t count,
                      unsigned seed) {
  std::vector<std::byte> bytes = inputs(world.rank(), count, seed, op, dtype);
  world.all_reduce(view(bytes, dtype), op);
  const std::vector<std::byte> expected = reduced(world.size(), count, seed, op, dtype);
  expect(is_rounded(dtype, op)
             ? nearly_equal(bytes, expected, dtype) && same_everywhere(world, bytes)
             : bytes == expected,
         std::string("all_reduce ") + to_string(dtype) + " " + to_string(op) + " × " +
             std::to_string(count));
}

void check_reduce_scatter(Communicator& world, DType dtype, ReduceOp op, std::size_t count,
                          unsigned seed) {
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<std::byte> bytes = inputs(world.rank(), count * size, seed, op, dtype);
  std::vector<std::byte> output(count * size_of(dtype));
  world.reduce_scatter(view(bytes, dtype), view(output, dtype), op);
  const std::vector<std::byte> all = reduced(world.size(), count * size, seed, op, dtype);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(output.size()) * world.rank();
  expect(std::equal(output.begin(), output.end(), first),
         std::string("reduce_scatter ") + to_string(dtype) + " " + to_string(op) + " × " +
             std::to_string(count));
}

void check_movement(Communicator& world, DType dtype, std::size_t count, unsigned seed) {
  const std::string what = std::string(to_string(dtype)) + " × " + std::to_string(count);
  for (int root = 0; root < world.size(); ++root) {
    std::vector<std::byte> bytes = inputs(world.rank(), count, seed, ReduceOp::kSum, dtype);
    world.broadcast(view(bytes, dtype), root);
    expect(bytes == inputs(root, count, seed, ReduceOp::kSum, dtype), "broadcast " + what);
  }
  std::vector<std::byte> own = inputs(world.rank(), count, seed, ReduceOp::kSum, dtype);
  std::vector<std::byte> gathered(own.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(view(own, dtype), view(gathered, dtype));
  std::vector<std::byte> expected;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto part = inputs(rank, count, seed, ReduceOp::kSum, dtype);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  expect(gathered == expected, "all_gather " + what);
}

bool all_are(const float* data, std::size_t count, float value) {
  return std::count(data, data + count, value) == static_cast<std::ptrdiff_t>(count);
}

// Sends to the next rank and receives from the previous one, asynchronously, so that no rank waits
// in a circle.
void check_messages(Communicator& world, DType dtype, std::size_t count, unsigned seed) {
  if (world.size() == 1) return;
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<std::byte> own = inputs(world.rank(), count, seed, ReduceOp::kSum, dtype);
  std::vector<std::byte> received(own.size());
  const WorkPtr sent = world.send(view(own, dtype), next, {.async = true});
  const WorkPtr arrived = world.recv(view(received, dtype), previous, {.async = true});
  arrived->wait();
  sent->wait();
  expect(received == inputs(previous, count, seed, ReduceOp::kSum, dtype), "send and recv");
}

// Types for tests in which the type doesn't matter to the way the ranks meet.
std::vector<DType> some_types() {
  return test::kIsSanitized ? std::vector{DType::kFloat32, DType::kBFloat16, DType::kFloat8E4M3}
                            : std::vector(std::begin(kAllTypes), std::end(kAllTypes));
}

void check_everything(const WorldOptions& world, const std::vector<std::size_t>& counts) {
  const auto errors = run_world(world, [&](Communicator& communicator) {
    unsigned seed = 0;
    for (const DType dtype : some_types()) {
      for (const std::size_t count : counts) {
        for (const ReduceOp op : kAllOps) {
          if (dtype == DType::kBool && op == ReduceOp::kAverage) continue;
          check_all_reduce(communicator, dtype, op, count, ++seed);
          check_reduce_scatter(communicator, dtype, op, count / 3, ++seed);
        }
        check_movement(communicator, dtype, count, ++seed);
        check_messages(communicator, dtype, count, ++seed);
      }
    }
    communicator.barrier();
  });
  for (const std::string& error : errors) CHECK(error == "");
}

}  // namespace

TEST_CASE("host collectives: every type, operation and size on one node") {
  const int num_ranks = GENERATE(1, 2, 3, 4);
  check_everything(one_node(num_ranks), {0, 1, 1000, 8193, 40'009});
}

TEST_CASE("host collectives: eight ranks on one node") {
  check_everything(one_node(8), {1, 1001, 20'003});
}

TEST_CASE("host collectives: every type, operation and size on several nodes") {
  const auto node_rank_of = GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1},
                                     std::vector<int>{0, 1, 0, 1, 2}, std::vector<int>{5, 5, 5, 2});
  WorldOptions world{.node_rank_of = node_rank_of};
  world.sockets_per_neighbour = GENERATE(1, 3);
  world.chunk_bytes = 4096;
  check_everything(world, {0, 1, 3, 1000, 9001});
}

TEST_CASE("host collectives: large buffers on several nodes") {
  const auto node_rank_of = GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1});
  const auto errors = run_world({.node_rank_of = node_rank_of}, [](Communicator& world) {
    for (const std::size_t count : {test::fewer_if_sanitized(1'500'007UL, 700'007UL)}) {
      check_all_reduce(world, DType::kFloat32, ReduceOp::kAverage, count, 1);
      check_all_reduce(world, DType::kBFloat16, ReduceOp::kSum, count, 2);
      check_reduce_scatter(world, DType::kFloat64, ReduceOp::kMax, count / 2, 3);
      check_movement(world, DType::kFloat64, count, 4);
      check_messages(world, DType::kInt64, count, 5);
    }
    if (test::kIsSanitized) return;
    // More elements than a region holds as float32.
    check_all_reduce(world, DType::kFloat8E4M3, ReduceOp::kMax, 2'500'001, 6);
    check_reduce_scatter(world, DType::kFloat8E5M2, ReduceOp::kMax, 1'300'001, 7);
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: half precision between nodes: same bits everywhere, near the mean") {
  const auto node_rank_of =
      GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 1, 2}, std::vector<int>{0, 0, 1, 2, 2});
  const DType dtype = GENERATE(DType::kFloat16, DType::kBFloat16);
  const std::size_t count = 50'001;
  // So large that sums would be infinite.
  const float largest = dtype == DType::kFloat16 ? 60'000 : 1e38F;
  const auto value = [&](int rank, std::size_t i) {
    const auto mixed =
        static_cast<unsigned>(i) * 2654435761U + static_cast<unsigned>(rank) * 40503U;
    return static_cast<float>(mixed >> 8) * 0x1p-24F * largest;
  };
  const auto errors = run_world({.node_rank_of = node_rank_of}, [&](Communicator& world) {
    std::vector<std::byte> bytes(2 * count), means(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int rank = 0; rank < world.size(); ++rank) sum += static_cast<double>(value(rank, i));
      put(bytes, i, dtype, static_cast<double>(value(world.rank(), i)));
      put(means, i, dtype, sum / world.size());
    }
    world.all_reduce(view(bytes, dtype), ReduceOp::kAverage);
    expect(nearly_equal(bytes, means, dtype), "the mean");
    expect(same_everywhere(world, bytes), "the same bits");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: half precision travels as such between nodes") {
  // 256 + 1 is no bfloat16: on the way it becomes 256, twice; as float32 it would be 258.
  const auto errors = run_world({.node_rank_of = {0, 1, 2}}, [](Communicator& world) {
    std::vector<std::byte> bytes(2 * 3 * 64);
    for (std::size_t i = 0; i < 3 * 64; ++i) {
      // The sum of block b begins at node b + 1.
      const bool first = world.rank() == static_cast<int>(i / 64 + 1) % 3;
      put(bytes, i, DType::kBFloat16, first ? 256 : 1);
    }
    world.all_reduce(view(bytes, DType::kBFloat16), ReduceOp::kSum);
    std::vector<std::byte> expected(bytes.size());
    for (std::size_t i = 0; i < 3 * 64; ++i) put(expected, i, DType::kBFloat16, 256);
    expect(bytes == expected, "each hop rounds");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: float32 that travels as half precision between nodes") {
  const auto node_rank_of = GENERATE(std::vector<int>{0, 1}, std::vector<int>{0, 1, 2});
  const DType wire = GENERATE(DType::kFloat16, DType::kBFloat16);
  const ReduceOp op = GENERATE(ReduceOp::kSum, ReduceOp::kAverage);
  const std::size_t count = GENERATE(std::size_t{1}, std::size_t{50'001});
  // For averages the sums of float16 would be infinite.
  const float largest = op == ReduceOp::kAverage && wire == DType::kFloat16 ? 60'000 : 1'000;
  const auto value = [&](int rank, std::size_t i) {
    const auto mixed =
        static_cast<unsigned>(i) * 2654435761U + static_cast<unsigned>(rank) * 40503U;
    return static_cast<float>(mixed >> 8) * 0x1p-24F * largest;
  };
  const auto errors = run_world({.node_rank_of = node_rank_of}, [&](Communicator& world) {
    expect(world.narrows(), "each rank has a node of its own");
    std::vector<float> values(count);
    std::vector<std::byte> found(2 * count), wanted(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int rank = 0; rank < world.size(); ++rank) sum += static_cast<double>(value(rank, i));
      values[i] = value(world.rank(), i);
      put(wanted, i, wire, op == ReduceOp::kAverage ? sum / world.size() : sum);
    }
    world.all_reduce({.data = values.data(), .count = count, .dtype = DType::kFloat32}, op,
                     {.wire = wire});
    for (std::size_t i = 0; i < count; ++i) put(found, i, wire, static_cast<double>(values[i]));
    expect(nearly_equal(found, wanted, wire), "the sum or mean");
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t half;
      std::memcpy(&half, found.data() + 2 * i, sizeof half);
      const float rounded =
          wire == DType::kBFloat16 ? float_from_bfloat16(half) : float_from_float16(half);
      expect(rounded == values[i], "a number of the narrow type");
    }
    expect(same_everywhere(world, found), "the same bits");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE(
    "host collectives: a call that can't travel narrower is refused, and so are ranks that "
    "differ") {
  const auto errors = run_world({.node_rank_of = {0, 0, 1}}, [](Communicator& world) {
    expect(!world.narrows(), "a node has two ranks");
    float value = 1;
    world.all_reduce({.data = &value, .count = 1, .dtype = DType::kFloat32}, ReduceOp::kSum,
                     {.wire = DType::kBFloat16});
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Contains("float32 can't travel as bfloat16"));
  }
  const auto different = run_world({.node_rank_of = {0, 1}}, [](Communicator& world) {
    std::vector<float> values(1000);
    CallOptions options;
    if (world.rank() == 1) options.wire = DType::kBFloat16;
    world.all_reduce({.data = values.data(), .count = 1000, .dtype = DType::kFloat32},
                     ReduceOp::kSum, options);
  });
  CHECK_THAT(different[0], Contains("float32 as bfloat16 × 1000"));
}

TEST_CASE("host collectives: buffers larger than the staging pipeline") {
  const int num_ranks = GENERATE(2, 3);
  const auto errors = run_world(one_node(num_ranks), [](Communicator& world) {
    for (const std::size_t count : {std::size_t{131'072}, std::size_t{1'000'003}}) {
      check_all_reduce(world, DType::kFloat32, ReduceOp::kSum, count, 1);
      check_all_reduce(world, DType::kFloat16, ReduceOp::kAverage, count, 2);
      check_reduce_scatter(world, DType::kFloat64, ReduceOp::kMax, count, 3);
      check_movement(world, DType::kInt32, count, 4);
      check_messages(world, DType::kInt64, count, 5);
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: buffers in the arena, at any offset and mixed with plain ones") {
  const int num_ranks = GENERATE(1, 2, 3);
  const auto errors = run_world(one_node(num_ranks), [](Communicator& world) {
    const auto buffer = world.allocate(std::size_t{4} << 20);
    auto* floats = static_cast<float*>(buffer->data());
    expect(all_are(floats, buffer->size_bytes() / 4, 0.0f), "zeroed");
    for (const std::size_t offset : {std::size_t{0}, std::size_t{17}, std::size_t{1} << 18}) {
      for (const std::size_t count : {std::size_t{100}, std::size_t{300'001}}) {
        // One rank uses memory outside the arena.
        const bool plain = world.rank() == 1 && offset == 17;
        std::vector<float> own(count);
        float* const data = plain ? own.data() : floats + offset;
        for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(world.rank() + 1);
        world.all_reduce({.data = data, .count = count}, ReduceOp::kSum);
        const float sum = static_cast<float>(world.size() * (world.size() + 1)) / 2;
        expect(all_are(data, count, sum), "sum in the arena");
        if (world.rank() == 0) std::fill_n(data, count, 5.0f);
        world.broadcast({.data = data, .count = count}, 0);
        expect(all_are(data, count, 5.0f), "broadcast in the arena");
      }
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: the root of a broadcast may change its buffer when it returns") {
  const bool in_arena = GENERATE(true, false);
  const auto errors = run_world(one_node(2), [&](Communicator& world) {
    const std::size_t count = std::size_t{1} << 20;
    const auto buffer = world.allocate(count * sizeof(float));
    std::vector<float> plain(count);
    float* const data = in_arena ? static_cast<float*>(buffer->data()) : plain.data();
    for (int i = 0; i < 20; ++i) {
      const auto value = static_cast<float>(i);
      if (world.rank() == 0) std::fill_n(data, count, value);
      world.broadcast({.data = data, .count = count}, 0);
      if (world.rank() == 0) std::fill_n(data, count, -1.0f);
      if (world.rank() == 0) continue;
      expect(all_are(data, count, value), "what the root had");
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: a broadcast's root waits for ranks that are slower than it") {
  const auto errors = run_world(one_node(2), [&](Communicator& world) {
    const std::size_t count = std::size_t{4} << 20;
    const auto value_at = [](std::size_t i) { return static_cast<float>(i >> 12); };
    std::vector<float> sent(world.rank() == 0 ? count : 0);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = value_at(i);
    for (int round = 0; round < 5; ++round) {
      // This memory was never touched, so each of its pages faults when it is written.
      const std::unique_ptr<float[]> fresh(world.rank() == 0 ? nullptr : new float[count]);
      float* const data = world.rank() == 0 ? sent.data() : fresh.get();
      world.broadcast({.data = data, .count = count}, 0);
      for (std::size_t i = 0; i < count; i += 1024) expect(data[i] == value_at(i), "the piece");
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE(
    "host collectives: an all-reduce in the arena returns when the others have written, too") {
  const auto errors = run_world(one_node(3), [](Communicator& world) {
    const std::size_t count = std::size_t{1} << 20;
    const auto buffer = world.allocate(count * sizeof(float));
    auto* const data = static_cast<float*>(buffer->data());
    for (int round = 0; round < 30; ++round) {
      std::fill_n(data, count, static_cast<float>(round + 1));
      world.all_reduce({.data = data, .count = count}, ReduceOp::kSum);
      for (const std::size_t last : {count - 1, 2 * count / 3 - 65, count / 3 - 65}) {
        expect(data[last] == static_cast<float>(3 * (round + 1)), "each rank's slice");
      }
      world.barrier();
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: reduce, groups and exchanges") {
  const auto node_rank_of =
      GENERATE(std::vector<int>{0}, std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 0});
  const auto errors = run_world({.node_rank_of = node_rank_of}, [](Communicator& world) {
    test::check_exchange(
        world, [](DType dtype, std::size_t count) { return test::HostArray(dtype, count); });
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: messages of a group to this rank itself must match") {
  const auto errors = run_world(one_node(2), [](Communicator& world) {
    std::vector<float> values(4);
    const TensorView all{.data = values.data(), .count = 4};
    const TensorView few{.data = values.data(), .count = 3};
    const auto group = [&](const std::vector<TensorView>& sent, const TensorView& received) {
      return std::string(test::error_of([&] {
                           world.group([&] {
                             for (const TensorView& view : sent) world.send(view, world.rank());
                             world.recv(received, world.rank());
                           });
                         }).what());
    };
    expect(group({few}, all) == "this rank sends itself 3 float32 and receives 4 float32", "sizes");
    expect(group({few, few}, few) == "a group with 2 sends and 1 receives of this rank with itself",
           "numbers");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: asynchronous operations complete in order, whoever runs them") {
  const auto errors = run_world(one_node(3), [](Communicator& world) {
    std::vector<std::vector<float>> buffers;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 50; ++i) buffers.emplace_back(1 + i * 400, static_cast<float>(i));
    for (auto& buffer : buffers) {
      works.push_back(world.all_reduce({.data = buffer.data(), .count = buffer.size()},
                                       ReduceOp::kSum, {.async = true}));
    }
    std::vector<float> last(10, 1.0f);
    world.all_reduce({.data = last.data(), .count = last.size()},
                     ReduceOp::kSum);  // comes after all the others
    for (int i = 0; i < 50; ++i) {
      expect(works[static_cast<std::size_t>(i)]->is_completed(), "completed before the last");
      works[static_cast<std::size_t>(i)]->wait();
      expect(buffers[static_cast<std::size_t>(i)].back() == static_cast<float>(3 * i), "async sum");
    }
    expect(last[0] == 3.0f, "sync sum after async ones");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("host collectives: sums are bit-equal on all ranks and in all runs") {
  const auto node_rank_of =
      GENERATE(std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 2}, std::vector<int>{0, 1, 0});
  std::vector<std::vector<float>> results;
  std::mutex mutex;
  for (int run = 0; run < 3; ++run) {
    const auto errors = run_world({.node_rank_of = node_rank_of}, [&](Communicator& world) {
      std::vector<float> values(200'001);
      unsigned state = static_cast<unsigned>(world.rank()) + 1;
      for (float& value : values) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state) * 1e-3f - 2e6f;
      }
      std::vector<float> small(values.begin(), values.begin() + 1000);
      world.all_reduce({.data = values.data(), .count = values.size()}, ReduceOp::kSum);
      world.all_reduce({.data = small.data(), .count = small.size()}, ReduceOp::kAverage);
      values.insert(values.end(), small.begin(), small.end());
      const std::lock_guard lock(mutex);
      results.push_back(std::move(values));
    });
    CHECK(all_well(errors));
  }
  REQUIRE(results.size() == 9);
  for (const auto& result : results) {
    CHECK(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)) == 0);
  }
}
