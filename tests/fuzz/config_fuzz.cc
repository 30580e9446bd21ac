// SPDX-License-Identifier: Apache-2.0
// Fuzzes ddprun.toml. Beyond "no crash" this must hold:
// - a text that is no configuration is refused with one Error(kInvalidArgument), of one line that
//   begins with the file's name;
// - a configuration names only options that exist.
#include <cstdint>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "launcher/config_file.h"
#include "launcher/options/option_table.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto config = launcher::parse_config_file(text, "file");
    for (const auto& entry : config.options) {
      DDPRUN_CHECK(launcher::find_option(entry.option) != nullptr);
      DDPRUN_CHECK(entry.line > 0);
    }
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kInvalidArgument);
    DDPRUN_CHECK(std::string_view(error.what()).starts_with("file:"));
  }
  return 0;
}
