// SPDX-License-Identifier: Apache-2.0
// Promises of reduce, groups and the functions of exchange.h, for every backend. `Make` gives
// memory of the communicator's kind: make(dtype, count) → write(), read(), view(), part().
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/support/elements.h"
#include "tests/support/errors.h"
#include "worker_sdk/core/exchange.h"

namespace ddprun::test {

// Memory for host communicators, with the functions of DeviceArray.
class HostArray {
 public:
  HostArray(DType dtype, std::size_t count)
      : dtype_(dtype), count_(count), bytes_(count * size_of(dtype)) {}

  void write(const std::vector<double>& values) {
    for (std::size_t i = 0; i < count_; ++i) store_element(bytes_.data(), i, dtype_, values[i]);
  }
  std::vector<double> read() const {
    std::vector<double> values;
    for (std::size_t i = 0; i < count_; ++i) {
      values.push_back(load_element(bytes_.data(), i, dtype_));
    }
    return values;
  }
  TensorView view() { return part(0, count_); }
  TensorView part(std::size_t first, std::size_t count) {
    return {.data = bytes_.data() + first * size_of(dtype_), .count = count, .dtype = dtype_};
  }

 private:
  const DType dtype_;
  const std::size_t count_;
  std::vector<std::byte> bytes_;
};

// The value that rank `from` sends to rank `to`. It is another one for each pair.
inline double letter(int from, int to) { return 1.0 + 10.0 * from + to; }

template <typename Make>
void check_reduce(Communicator& world, Make make) {
  for (int root = 0; root < world.size(); ++root) {
    auto array = make(DType::kFloat32, 100);
    array.write(std::vector<double>(100, world.rank() + 1.0));
    world.reduce(array.view(), ReduceOp::kSum, root);
    const double sum = world.size() * (world.size() + 1) / 2.0;
    if (world.rank() == root) expect(array.read() == std::vector<double>(100, sum), "the sum");
  }
}

// Rank r sends r + to + 1 elements to rank `to`, but none to the next rank.
template <typename Make>
void check_uneven_all_to_all(Communicator& world, Make make) {
  const int size = world.size(), rank = world.rank();
  const auto count = [&](int from, int to) {
    return size > 1 && to == (from + 1) % size ? std::size_t{0}
                                               : static_cast<std::size_t>(from + to + 1);
  };
  std::vector<double> sent, expected;
  std::size_t num_in = 0, num_out = 0;
  for (int peer = 0; peer < size; ++peer) {
    sent.insert(sent.end(), count(rank, peer), letter(rank, peer));
    expected.insert(expected.end(), count(peer, rank), letter(peer, rank));
    num_in += count(rank, peer);
    num_out += count(peer, rank);
  }
  auto input = make(DType::kInt32, num_in);
  auto output = make(DType::kInt32, num_out);
  input.write(sent);
  std::vector<TensorView> inputs, outputs;
  std::size_t at_in = 0, at_out = 0;
  for (int peer = 0; peer < size; ++peer) {
    inputs.push_back(input.part(at_in, count(rank, peer)));
    outputs.push_back(output.part(at_out, count(peer, rank)));
    at_in += count(rank, peer);
    at_out += count(peer, rank);
  }
  all_to_all(world, inputs, outputs);
  expect(output.read() == expected, "uneven all_to_all");
}

template <typename Make>
void check_parts(Communicator& world, Make make) {
  const auto size = static_cast<std::size_t>(world.size());
  const int rank = world.rank();
  auto whole = make(DType::kFloat64, 3 * size);
  auto other = make(DType::kFloat64, 3 * size);
  auto part = make(DType::kFloat64, 3);
  std::vector<double> mine, theirs;
  for (int peer = 0; peer < world.size(); ++peer) {
    mine.insert(mine.end(), 3, letter(rank, peer));
    theirs.insert(theirs.end(), 3, letter(peer, rank));
  }
  whole.write(mine);
  all_to_all(world, whole.view(), other.view());
  expect(other.read() == theirs, "all_to_all");
  for (int root = 0; root < world.size(); ++root) {
    std::vector<double> all;
    for (int peer = 0; peer < world.size(); ++peer) all.insert(all.end(), 3, letter(peer, root));
    part.write(std::vector<double>(3, letter(rank, root)));
    gather(world, part.view(), rank == root ? other.view() : TensorView{}, root);
    if (rank == root) expect(other.read() == all, "gather");
    scatter(world, rank == root ? whole.view() : TensorView{}, part.view(), root);
    expect(part.read() == std::vector<double>(3, letter(root, rank)), "scatter");
  }
}

// Two messages to each rank, all at once, larger than any buffer between the ranks.
template <typename Make>
void check_large_exchange(Communicator& world, Make make) {
  const std::size_t count = std::size_t{3} << 20;
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  auto sent = make(DType::kInt8, count);
  auto received = make(DType::kInt8, count);
  sent.write(std::vector<double>(count, letter(world.rank(), next)));
  const WorkPtr work = world.group(
      [&] {
        world.send(sent.view(), next);
        world.send(sent.part(0, 1), next);
        world.recv(received.part(0, count), previous);
        world.recv(received.part(0, 1), previous);
      },
      true);
  work->wait();
  expect(received.read() == std::vector<double>(count, letter(previous, world.rank())),
         "both messages, in order");
  expect(work->is_completed(), "it has been waited for");
}

template <typename Make>
void check_all_reduce_each(Communicator& world, Make make) {
  auto few = make(DType::kFloat32, 5);
  auto many = make(DType::kInt64, 700);
  auto none = make(DType::kFloat32, 0);
  few.write(std::vector<double>(5, 2.0));
  many.write(std::vector<double>(700, world.rank()));
  all_reduce_each(world, {few.view(), none.view(), many.view()}, ReduceOp::kMax);
  expect(few.read() == std::vector<double>(5, 2.0), "the first");
  expect(many.read() == std::vector<double>(700, world.size() - 1.0), "the last");
}

// A refused call has started nothing, so the ranks stay in step.
template <typename Make>
void check_refused_groups(Communicator& world, Make make) {
  auto array = make(DType::kFloat32, 4);
  array.write({1, 1, 1, 1});
  const auto refuses = [&](const std::function<void()>& calls) {
    const Error error = error_of([&] { world.group(calls); });
    expect(error.code() == ErrorCode::kInvalidArgument, error.what());
  };
  const int next = (world.rank() + 1) % world.size();
  refuses([&] {
    expect(world.all_reduce(array.view(), ReduceOp::kSum) == nullptr, "there is no Work inside");
    if (world.size() > 1) world.send(array.view(), next);
    world.group([] {});
  });
  refuses([&] { world.send(array.view(), world.size()); });
  refuses([&] { world.barrier(); });
  auto flag = make(DType::kBool, 1);
  expect(error_of([&] { world.all_reduce(flag.view(), ReduceOp::kAverage); }).code() ==
             ErrorCode::kInvalidArgument,
         "an average of bool");
  expect(error_of([&] { gather(world, array.view(), array.view(), world.size()); }).code() ==
             ErrorCode::kInvalidArgument,
         "no such root");
  expect(error_of([&] { all_to_all(world, array.view(), array.part(0, 3)); }).code() ==
             ErrorCode::kInvalidArgument,
         "two sizes");
  world.group([] {});
  array.write({1, 1, 1, 1});
  world.all_reduce(array.view(), ReduceOp::kSum);
  expect(array.read() == std::vector<double>(4, world.size()), "the ranks are in step");
}

template <typename Make>
void check_exchange(Communicator& world, Make make) {
  check_reduce(world, make);
  check_parts(world, make);
  check_uneven_all_to_all(world, make);
  check_large_exchange(world, make);
  check_all_reduce_each(world, make);
  check_refused_groups(world, make);
}

}  // namespace ddprun::test
