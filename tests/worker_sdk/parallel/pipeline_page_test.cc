// SPDX-License-Identifier: Apache-2.0
// The schedules in docs/pipeline.md are those of the code.
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/worker_sdk/parallel/pipeline_timeline.h"

using namespace ddprun;
using ddprun::test::Contains;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(DDPRUN_SOURCE_DIR "/" + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("docs/pipeline.md: its drawing is the schedule") {
  CHECK_THAT(text_of("docs/pipeline.md"),
             Contains("```\n" + test::draw_pipeline(PipelineKind::k1F1B, 4, 8) + "```\n"));
}

TEST_CASE("docs/pipeline.md: its first example is lines of the program") {
  const std::string page = text_of("docs/pipeline.md");
  const std::string program = text_of("examples/minimal_pipeline/main.cc");
  const std::size_t begin = page.find("```cpp\n") + 7;
  std::stringstream example(page.substr(begin, page.find("```", begin) - begin));
  int num_lines = 0;
  for (std::string line; std::getline(example, line);) {
    if (line == "…") continue;
    CHECK_THAT(program, Contains(line.substr(line.find_first_not_of(' '))));
    ++num_lines;
  }
  CHECK(num_lines >= 8);
}
