// SPDX-License-Identifier: Apache-2.0
#include "apps/train/summary.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

using namespace ddprun::train;

namespace {

const ProgressState kHalfway{.epoch = 2,
                             .num_epochs = 5,
                             .step = 12,
                             .num_steps = 24,
                             .loss = 0.5321,
                             .samples_per_second = 5120};

// The text that `act` prints.
template <typename Act>
std::string printed(int columns, bool silent, Act act) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  Progress progress(out, columns, silent);
  act(progress);
  std::fclose(out);
  const std::string result(text, size);
  std::free(text);
  return result;
}

}  // namespace

TEST_CASE("progress: a line shows epoch, bar, step, loss and speed and fits the terminal") {
  const std::string line = progress_line(kHalfway, 70);
  CHECK(line.size() == 69);
  CHECK(line.find("epoch 2/5 [====") == 0);
  CHECK(line.find("] 12/24  loss 0.532  5120 samples/s") != std::string::npos);
}

TEST_CASE("progress: a narrow terminal gets no bar, a very narrow one a cut line") {
  CHECK(progress_line(kHalfway, 46).find('[') == std::string::npos);
  CHECK(progress_line(kHalfway, 12) == "epoch 2/5 1");
  CHECK(progress_line(kHalfway, 0).size() == 1);
}

TEST_CASE("progress: the bar redraws in place on a terminal and goes before a line") {
  const std::string text = printed(50, false, [](Progress& p) {
    p.update(kHalfway);
    p.line("done");
  });
  CHECK(text == "\r" + progress_line(kHalfway, 50) + "\r" + std::string(49, ' ') + "\rdone\n");
}

TEST_CASE("progress: an output that is no terminal gets lines alone") {
  const std::string text = printed(0, false, [](Progress& p) {
    p.update(kHalfway);
    p.line("done");
  });
  CHECK(text == "done\n");
}

TEST_CASE("progress: other ranks are silent") {
  CHECK(printed(80, true, [](Progress& p) {
          p.update(kHalfway);
          p.line("done");
        }).empty());
}

TEST_CASE("progress: redraws are rationed, but an epoch's last step is shown") {
  printed(80, false, [](Progress& p) {
    p.update(kHalfway);
    CHECK_FALSE(p.due(kHalfway));
    ProgressState last = kHalfway;
    last.step = last.num_steps;
    CHECK(p.due(last));
  });
}

TEST_CASE("summary: a file that can't be written whole isn't there", "[proc]") {
  const ddprun::test::TempDirectory temp;
  const std::string path = temp.path("summary.json");
  check_writable(path);
  CHECK(std::filesystem::is_empty(temp.path()));
  write_text_file(path, "{}");
  check_writable(path);
  CHECK(std::filesystem::file_size(path) == 2);

  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{.rlim_cur = 100, .rlim_max = limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const ddprun::Error error =
      ddprun::test::error_of([&] { write_text_file(path, std::string(1'000, 'x')); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, before);
  CHECK(std::string(error.what()) == "can't write " + path + ": File too large");
  CHECK(std::filesystem::is_empty(temp.path()));
}

TEST_CASE("summary: a link of another user is not written through", "[proc]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root gives links away");
  const ddprun::test::TempDirectory temp;
  const std::string path = temp.path("link"), target = temp.path("target");
  write_text_file(target, "precious");
  std::filesystem::create_symlink(target, path);
  REQUIRE(::lchown(path.c_str(), 12345, 12345) == 0);
  for (const auto& write : {std::function<void()>([&] { check_writable(path); }),
                            std::function<void()>([&] { write_text_file(path, "x"); })}) {
    CHECK(std::string(ddprun::test::error_of(write).what()) ==
          "can't write " + path + ": it is a link of user 12345, who could lead it anywhere");
  }
  CHECK(std::filesystem::file_size(target) == 8);
}

TEST_CASE("summary: JSON has the last epoch's accuracy on top") {
  Summary summary;
  summary.backend = "host";
  summary.epochs.push_back({.epoch = 1, .test_accuracy = 0.25});
  summary.epochs.push_back({.epoch = 2, .test_accuracy = 0.5});
  const std::string json = to_json(summary);
  CHECK(json.find(R"("test_accuracy":0.5,"first_step":1,"last_step":0,"compress":"none")") !=
        std::string::npos);
  CHECK(json.find("\"epoch\":2") != std::string::npos);
}

TEST_CASE("summary: averagings or exchanges are told in a line") {
  const SyncReport report{.num_averagings = 9,
                          .sent_bytes = 21'600'000,
                          .max_lead = 4,
                          .mean_lead = 1.25,
                          .waited_seconds = 0.84,
                          .steps_per_second = 41.26};
  CHECK(describe(report, false) == "averaged 9 times, 21.6 MB sent per rank");
  CHECK(describe(report, true) ==
        "41.3 steps/s, ahead of the slowest rank by at most 4 steps, 1.25 on average; "
        "0.8 s waited, 21.6 MB sent per rank");
}

TEST_CASE("summary: a loss that is no number is null, for JSON has none such") {
  Summary summary;
  const double infinity = std::numeric_limits<double>::infinity();
  summary.epochs = {{.epoch = 1, .train_loss = std::nan(""), .test_loss = infinity}};
  const std::string json = to_json(summary);
  CHECK(json.find("\"train_loss\":null,\"test_loss\":null") != std::string::npos);
}
