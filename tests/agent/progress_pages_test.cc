// SPDX-License-Identifier: Apache-2.0
#include "agent/progress_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

// A worker's view of its page, through the memory file alone.
class Mapped {
 public:
  explicit Mapped(int fd)
      : data_(::mmap(nullptr, kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  ~Mapped() { ::munmap(data_, kProgressPageBytes); }
  void set(std::size_t offset, std::uint64_t value) {
    std::memcpy(static_cast<char*>(data_) + offset, &value, sizeof value);
  }
  std::uint64_t get(std::size_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, static_cast<char*>(data_) + offset, sizeof value);
    return value;
  }

 private:
  void* data_;
};

}  // namespace

TEST_CASE("progress pages: a worker's words by the offsets of docs/internals/agent-socket.md") {
  ProgressPages pages;
  pages.begin_round(3, 2);
  CHECK(pages.round() == 3);
  CHECK(pages.num_workers() == 2);
  CHECK(pages.read(0) == ProgressSample{});

  Mapped worker(pages.memory(1));
  CHECK(std::memcmp(std::array{worker.get(0)}.data(), "DDPRUNPG", 8) == 0);
  CHECK(worker.get(8) == 1);
  worker.set(64, 3);
  worker.set(72, 12);
  worker.set(80, 11);
  worker.set(88, 1);
  worker.set(96, 40);
  worker.set(104, 39);
  worker.set(112, 4);
  pages.set_connected(1);
  const ProgressSample sample = pages.read(1);
  CHECK(sample.connected);
  CHECK(sample.phase == ProgressPhase::kEvaluate);
  CHECK(sample.step == 12);
  CHECK(sample.steps_done == 11);
  CHECK(sample.own_count);
  CHECK(sample.collectives_begun == 40);
  CHECK(sample.collectives_done == 39);
  CHECK(sample.last_collective == CollectiveKind::kReduceScatter);
  CHECK(pages.read(0) == ProgressSample{});

  worker.set(64, 99);
  worker.set(112, ~0ull);
  CHECK(pages.read(1).phase == ProgressPhase::kStartUp);
  CHECK(pages.read(1).last_collective == CollectiveKind::kNone);
}

TEST_CASE("progress pages: the sums of steps, of one moment, by the offsets of the docs") {
  ProgressPages pages;
  pages.begin_round(1, 1);
  Mapped worker(pages.memory(0));
  worker.set(64, 1);
  worker.set(72, 12);
  CHECK_FALSE(pages.read(0).steps.has_value());  // a worker with an older SDK tells no steps
  worker.set(792, 1);
  worker.set(808, 20);
  CHECK_FALSE(pages.read(0).steps.has_value());  // the worker is writing its first sums
  for (std::size_t i = 1; i < 7; ++i) worker.set(808 + 8 * i, 20 + i);
  worker.set(800, 1);
  CHECK(pages.read(0).steps == StepSums{1, 20, 21, 22, 23, 24, 25, 26});
  worker.set(792, 2);
  CHECK_FALSE(pages.read(0).steps.has_value());
  CHECK(pages.read(0).step == 12);
}

TEST_CASE("progress pages: an observer's words, beside which the worker's own stay empty") {
  ProgressPages pages;
  pages.begin_round(1, 1);
  Mapped worker(pages.memory(0));
  CHECK_FALSE(pages.read_seen(0).has_value());
  worker.set(864, 12);
  worker.set(872, 11);
  worker.set(888, 20);
  REQUIRE(pages.read_seen(0).has_value());
  CHECK_FALSE(pages.read_seen(0)->steps.has_value());  // it is writing its first sums
  worker.set(896, 21);
  for (std::size_t i = 0; i < 9; ++i) worker.set(904 + 8 * i, 22 + i);
  worker.set(880, 11);
  const ProgressWords seen = pages.read_seen(0).value();
  CHECK(seen.phase == ProgressPhase::kTrain);
  CHECK((seen.step == 12 && seen.steps_done == 12));
  CHECK(seen.steps == StepSums{11, 20, 22, 23, 24, 25, 21, 26});
  CHECK((seen.gpu_peak_bytes == 27 && seen.skipped_steps == 28));
  CHECK((seen.num_reports == 29 && seen.loss_bits == 30));
  CHECK((seen.seen_collective.empty() && seen.samples == 0));
  worker.set(976, 0x757365725f6c6c61);  // a name between two others
  worker.set(984, 0x0a6563);
  worker.set(992, 812);
  worker.set(1000, 4096);
  CHECK(pages.read_seen(0)->seen_collective == "all_resuce #812");
  CHECK(pages.read_seen(0)->samples == 4096);
  CHECK(pages.read(0) == ProgressSample{});
}

TEST_CASE("progress pages: the last step is the job's own count only") {
  ProgressPages pages;
  pages.begin_round(1, 3);
  CHECK(pages.last_step() == 0);
  Mapped(pages.memory(0)).set(80, 7);
  Mapped(pages.memory(1)).set(80, 9);
  Mapped own(pages.memory(2));
  own.set(80, 100);
  own.set(88, 1);
  CHECK(pages.last_step() == 9);
}

TEST_CASE("progress pages: a stop request reaches every worker's page, a new round's are fresh") {
  ProgressPages pages;
  pages.begin_round(1, 2);
  const Mapped first(pages.memory(0)), second(pages.memory(1));
  pages.request_stop(StopRequest::kPreemption, Clock::time_point(std::chrono::seconds(5)));
  for (const Mapped* worker : {&first, &second}) {
    CHECK(worker->get(128) == 1);
    CHECK(worker->get(136) == 5'000'000'000);
  }
  CHECK(pages.read(0).stop_requested);
  pages.begin_round(2, 1);
  CHECK(pages.read(0) == ProgressSample{});
  CHECK(first.get(128) == 1);  // an old worker's page stays unchanged
}

TEST_CASE("progress pages: the loss of a peer is told to every worker of the round, to no other") {
  ProgressPages pages;
  pages.begin_round(1, 2);
  const Mapped first(pages.memory(0)), second(pages.memory(1));
  CHECK(first.get(144) == 0);
  pages.tell_peer_lost();
  CHECK(first.get(144) == 1);
  CHECK(second.get(144) == 1);
  CHECK_FALSE(pages.read(0).stop_requested);
  pages.begin_round(2, 1);
  CHECK(Mapped(pages.memory(0)).get(144) == 0);
  CHECK(first.get(144) == 1);
}

TEST_CASE("progress pages: no worker can resize its page") {
  ProgressPages pages;
  pages.begin_round(1, 1);
  CHECK(::ftruncate(pages.memory(0), 0) == -1);
  CHECK(::ftruncate(pages.memory(0), 1 << 20) == -1);
  CHECK(::fcntl(pages.memory(0), F_ADD_SEALS, F_SEAL_WRITE) == -1);
}

TEST_CASE(
    "progress pages: a worker's communicators by the offsets of docs/internals/agent-socket.md") {
  ProgressPages pages;
  pages.begin_round(1, 1);
  CHECK(pages.communicators(0).empty());
  Mapped worker(pages.memory(0));
  constexpr std::size_t kSecond = 256 + 64;
  worker.set(kSecond + 40, 4);    // size
  worker.set(kSecond + 32, 126);  // done
  auto states = pages.communicators(0);
  REQUIRE(states.size() == 1);
  CHECK(states[0].communicator == 1);
  CHECK(states[0].size == 4);
  CHECK(states[0].done == 126);
  CHECK_FALSE(states[0].open.has_value());
  worker.set(kSecond + 8, (std::uint64_t{3} << 32) | (1 << 16) | (2 << 8) | 2);
  worker.set(kSecond + 16, 8);
  worker.set(kSecond + 24, 1'000);
  worker.set(kSecond, 127);
  states = pages.communicators(0);
  REQUIRE(states[0].open.has_value());
  CHECK(text_of(*states[0].open) == "broadcast #127 (64 bytes float64, root 3) of communicator 1");
  CHECK(states[0].begun_ns == 1'000);
  for (std::size_t offset = 256; offset < 256 + 8 * 64; offset += 8) {
    worker.set(offset, ~std::uint64_t{0});  // a worker may write any value
  }
  CHECK(pages.communicators(0).size() == 8);
}
