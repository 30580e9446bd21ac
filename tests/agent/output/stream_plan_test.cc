// SPDX-License-Identifier: Apache-2.0
// The table of docs/output.md: options and scene → the way of each stream.
#include "agent/output/output_options.h"

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

struct PlanFixture {
  OutputOptions options;
  OutputScene scene{.several_workers = true};

  void redirects(const char* text) { CHECK(parse_stream_spec(text, options.redirects).empty()); }
  void tee(const char* text) { CHECK(parse_stream_spec(text, options.tee).empty()); }
  void with_files() {
    options.log_dir = "/logs";
    scene.has_files = true;
  }
  // The ways of stdout and stderr as "console/file"; "+" if they share one pipe.
  std::string ways(int local_rank = 0, int global_rank = 0) const {
    const WorkerPlan plan = plan_output(options, scene, local_rank, global_rank);
    return way(plan.out) + (plan.one_pipe ? "+" : " ") + way(plan.err);
  }
  static std::string way(const StreamPlan& plan) {
    const char* console[] = {"-", "tail", "inherit", "raw", "lines"};
    const char* file[] = {"", "/direct", "/copied"};
    std::string text = console[static_cast<int>(plan.console)];
    if (plan.console == ConsoleWay::kLines) text += "(" + plan.prefix_template + ")";
    return text + file[static_cast<int>(plan.file)] + (plan.filtered ? "/filtered" : "");
  }
};

constexpr char kRank[] = "lines([${rank}] )";
constexpr char kTee[] = "lines([${role_name}${local_rank}]:)";

std::string two(const std::string& way) { return way + " " + way; }

TEST_CASE("stream plan: several workers have prefixed lines, in order where it is one file") {
  PlanFixture f;
  CHECK(f.ways() == two(kRank));
  f.scene.same_file = true;
  CHECK(f.ways() == std::string(kRank) + "+" + kRank);
  f.options.prefix_template = "";
  CHECK(f.ways() == "lines()+lines()");
}

TEST_CASE("stream plan: a single worker has the console itself") {
  PlanFixture f;
  f.scene.several_workers = false;
  CHECK(f.ways() == "inherit raw");
  f.scene.same_file = true;
  CHECK(f.ways() == "raw+raw");
  f.scene.stdout_is_terminal = f.scene.stderr_is_terminal = true;
  CHECK(f.ways() == "inherit inherit");
  f.options.prefix_template = "> ";
  CHECK(f.ways() == "lines(> )+lines(> )");
}

TEST_CASE("stream plan: several workers have the console itself under the name torchrun, too") {
  PlanFixture f;
  f.options.inherit = true;
  f.options.prefix_template.emplace("> ");  // a prefix of tee'd streams only
  CHECK(f.ways() == "inherit lines()");
  f.scene.stderr_is_terminal = true;
  CHECK(f.ways() == "inherit inherit");
}

TEST_CASE("stream plan: redirected streams go straight to their files") {
  PlanFixture f;
  f.with_files();
  f.redirects("3");
  CHECK(f.ways() == "-/direct -/direct");
  f.redirects("1");
  CHECK(f.ways() == std::string("-/direct ") + kRank);
  f.redirects("0:1,1:2");
  CHECK(f.ways(0, 4) == std::string("-/direct ") + kRank);
  CHECK(f.ways(1, 5) == std::string(kRank) + " -/direct");
  CHECK(f.ways(2, 6) == two(kRank));
}

TEST_CASE("stream plan: we write where a file is bounded, or the worker's place isn't known") {
  PlanFixture f;
  f.with_files();
  f.redirects("3");
  f.options.log_max_bytes = 1;
  CHECK(f.ways() == "-/copied -/copied");
  f.options.log_max_bytes = 0;
  CHECK(f.ways(0, -1) == "-/copied -/copied");
}

TEST_CASE("stream plan: tee'd streams go both ways, behind torchrun's prefix") {
  PlanFixture f;
  f.with_files();
  f.tee("1");
  CHECK(f.ways() == std::string(kTee) + "/copied " + kRank);
  f.redirects("2");
  CHECK(f.ways() == std::string(kTee) + "/copied -/direct");
  f.options.stdout_filters = {"x"};
  f.options.stderr_filters = {"y"};
  CHECK(f.ways() == std::string(kTee) + "/copied/filtered -/direct");
  f.scene.same_file = true;
  f.tee("3");
  CHECK(f.ways() == std::string(kTee) + "/copied/filtered " + kTee + "/copied/filtered");
}

TEST_CASE("stream plan: a tee is shown without a log directory, ignored with /dev/null as one") {
  PlanFixture f;
  f.tee("3");
  CHECK(f.ways() == two(kTee));
  f.options.log_dir = "/dev/null";
  f.redirects("3");
  CHECK(f.ways() == two(kRank));
}

TEST_CASE("stream plan: files that can't be made are shown instead") {
  PlanFixture f;
  f.options.log_dir = "/logs";
  f.redirects("3");
  CHECK(f.ways() == two(kRank));
}

TEST_CASE("stream plan: ranks that aren't asked for are in their files only") {
  PlanFixture f;
  f.options.local_ranks.add(1, 1);
  CHECK(f.ways(0, 4) == "- tail");
  CHECK(f.ways(1, 5) == two(kRank));
  f.with_files();
  f.tee("3");
  CHECK(f.ways(0, 4) == "-/direct -/direct");
  CHECK(f.ways(1, 5) == std::string(kTee) + "/copied " + kTee + "/copied");
  f.options.ranks.add(0, 4);
  CHECK(f.ways(1, 5) == "-/direct -/direct");
}

}  // namespace
}  // namespace ddprun::agent
