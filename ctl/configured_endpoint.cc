// SPDX-License-Identifier: Apache-2.0
#include "ctl/configured_endpoint.h"

#include <utility>

#include "common/error.h"
#include "common/text.h"
#include "common/toml.h"

namespace ddprun::ctl {
namespace {

void take(const ConfigText& file, ConfiguredEndpoint& all) {
  const toml::table table = parsed_toml(file.text, file.path);
  const std::pair<const char*, std::string*> keys[] = {{"rdzv_endpoint", &all.rdzv_endpoint},
                                                       {"token_file", &all.token_file},
                                                       {"tls_ca", &all.tls.ca},
                                                       {"tls_cert", &all.tls.cert},
                                                       {"tls_key", &all.tls.key}};
  for (const auto& [key, value] : keys) {
    const toml::node* node = table.get(key);
    if (node == nullptr) continue;
    const auto refuse = [&, key = key](const char* what) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat(one_line(file.path), ":", node->source().begin.line, ": ", key, what));
    };
    if (!node->is_string()) refuse(" wants a text");
    if (!value->empty()) continue;
    *value = node->as_string()->get();
    // A user who writes it wants the proof, and all would run without it.
    const bool is_file = value != &all.rdzv_endpoint;
    if (is_file && value->empty()) refuse(" wants a value, got nothing");
  }
}

}  // namespace

ConfiguredEndpoint configured_endpoint(const std::vector<ConfigText>& files,
                                       ConfiguredEndpoint given) {
  for (const ConfigText& file : files) {
    if (!file.is_hidden) take(file, given);
  }
  return given;
}

}  // namespace ddprun::ctl
