// SPDX-License-Identifier: Apache-2.0
// The hooks of ddprun, on one rank: the result of compression is this rank's own gradient.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "worker_sdk/core/solo_communicator.h"
#include "worker_sdk/ddp/hooks/compression.h"
#include "worker_sdk/ddp/reducer.h"

using namespace ddprun;
using test::contains;
using test::error_of;

namespace {

constexpr const char* kAll[] = {"fp16", "bf16", "int8", "topk:0.02:0", "powersgd:1:0"};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One rank with one parameter per entry of `shapes`. Its gradients go in and come out as vectors.
struct Model {
  Model(const std::string& compression, const std::vector<std::vector<std::int64_t>>& shapes)
      : hook(make_comm_hook(parse_compression(compression))),
        reducer(*communicator, specs(shapes)) {
    reducer.set_hook(hook);
  }

  static std::vector<ParameterSpec> specs(const std::vector<std::vector<std::int64_t>>& shapes) {
    std::vector<ParameterSpec> result;
    for (const auto& shape : shapes) {
      std::size_t count = 1;
      for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
      std::string name(1, static_cast<char>('a' + result.size()));
      result.push_back({.name = std::move(name), .count = count, .shape = shape});
    }
    return result;
  }

  using Gradients = std::vector<std::vector<float>>;

  Gradients average(const Gradients& gradients) {
    for (std::size_t i = gradients.size(); i-- > 0;) {
      const TensorView view = reducer.gradient(i);
      REQUIRE(view.count == gradients[i].size());
      std::copy(gradients[i].begin(), gradients[i].end(), static_cast<float*>(view.data));
      reducer.mark_ready(i);
    }
    reducer.finalize();
    Gradients result;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto* data = static_cast<const float*>(reducer.gradient(i).data);
      result.emplace_back(data, data + reducer.gradient(i).count);
    }
    if (reducer.wants_rebuild()) reducer.rebuild(reducer.first_arrival());
    return result;
  }

  std::unique_ptr<Communicator> communicator = make_solo_communicator();
  std::shared_ptr<CommHook> hook;
  Reducer reducer;
};

}  // namespace

TEST_CASE("compression: each name comes back as it was said") {
  for (const char* text : {"none", "fp16", "bf16", "int8", "topk:0.25:7", "powersgd:3:100"}) {
    CHECK(to_string(parse_compression(text)) == text);
  }
  CHECK(to_string(parse_compression("topk")) == "topk:0.02:24");
  CHECK(to_string(parse_compression("topk:0.1")) == "topk:0.1:24");
  CHECK(to_string(parse_compression("powersgd")) == "powersgd:4:24");
  CHECK(to_string(parse_compression("powersgd:2")) == "powersgd:2:24");
  CHECK(make_comm_hook(parse_compression("none")) == nullptr);
}

TEST_CASE("compression: a wrong one is named in one line") {
  for (const char* text : {"", ":", "fp8", "None", "bf16:2", "fp16\n", "topk:", "topk:0",
                           "topk:nan", "topk:1.5", "topk:0.1:", "topk:0.1:-1", "topk:0.1:2:3",
                           "powersgd:0", "powersgd:1:", "powersgd:1:-1", "powersgd:1:2:3"}) {
    const Error error = error_of([&] { parse_compression(text); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK(contains(error.what(), "is no compression"));
    CHECK_FALSE(contains(error.what(), "\n"));
  }
}

TEST_CASE("compression: gradients on a GPU are refused by name") {
  GradBucket bucket{.view = {.device = {.kind = Device::Kind::kCuda}}};
  bucket.gradients.push_back({.name = "fc.weight"});
  const auto communicator = make_solo_communicator();
  for (const char* text : kAll) {
    const auto hook = make_comm_hook(parse_compression(text));
    const Error error = error_of([&] { hook->prepare({&bucket, 1}, *communicator); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK(contains(error.what(), "that of fc.weight is on a GPU"));
  }
}

TEST_CASE("compression: float64 gradients travel as they are") {
  for (const char* text : kAll) {
    const auto communicator = make_solo_communicator();
    Reducer reducer(*communicator, {{.name = "a", .count = 3, .dtype = DType::kFloat64}});
    reducer.set_hook(make_comm_hook(parse_compression(text)));
    auto* const gradient = static_cast<double*>(reducer.gradient(0).data);
    gradient[1] = 1.0 / 3;
    reducer.mark_ready(0);
    reducer.finalize();
    CHECK(gradient[1] == 1.0 / 3);
    CHECK(reducer.traffic().sent_bytes == reducer.traffic().uncompressed_bytes);
  }
}

TEST_CASE("fp16 and bf16: gradients are rounded to the nearest even, half the bytes are sent") {
  Model fp16("fp16", {{4}, {20}}), bf16("bf16", {{4}, {20}});
  const std::vector<float> ones(20, 1);
  const Model::Gradients gradients{{1.0F + 0x1p-11F, -1.5F * 0x1p-24F, 70000, -kInfinity}, ones};
  CHECK(fp16.average(gradients) ==
        Model::Gradients{{1, -2.0F * 0x1p-24F, kInfinity, -kInfinity}, ones});
  CHECK(bf16.average(gradients) ==
        Model::Gradients{{1, -1.5F * 0x1p-24F, 70144, -kInfinity}, ones});
  for (Model* model : {&fp16, &bf16}) {
    CHECK(model->reducer.traffic().uncompressed_bytes == 64 + 128);
    CHECK(model->reducer.traffic().sent_bytes == 32 + 64);
    model->average(gradients);  // the buckets are rebuilt now
    CHECK(model->reducer.traffic().sent_bytes == 2 * (32 + 64));
  }
}

TEST_CASE(
    "int8: each block has its own scale, rounding is to even, values that are not finite show") {
  std::vector<float> values(600, 0);
  values[0] = 127;
  values[1] = 2.5F;
  values[2] = -3.5F;
  values[3] = 0.4F;
  values[256] = -254e-20F;
  values[257] = 3e-20F;
  values[512] = kInfinity;
  values[513] = 1;
  Model model("int8", {{600}});
  const std::vector<float> result = model.average({values})[0];
  CHECK(std::vector<float>(result.begin(), result.begin() + 5) ==
        std::vector<float>{127, 2, -4, 0, 0});
  CHECK(std::abs(result[256] + 254e-20F) < 1e-24F);
  CHECK(std::abs(result[257] - 4e-20F) < 1e-24F);
  CHECK(result[511] == 0);
  for (const std::size_t i : {512, 513, 599}) CHECK(std::isnan(result[i]));
  CHECK(model.reducer.traffic().sent_bytes == 608 + 3 * 4);
  const std::vector<float> tiny(600, 1e-37F);
  CHECK(model.average({tiny})[0] == std::vector<float>(600, 0));
}

TEST_CASE("top-k: the largest travel, the first of equal ones, and the rest is kept to the bit") {
  Model model("topk:0.3:0", {{5}, {5}});  // it sends three of ten elements
  CHECK(model.average({{1, -3, 2, 2, 0}, {0, 2, 0, 0, 9}}) ==
        Model::Gradients{{0, -3, 2, 0, 0}, {0, 0, 0, 0, 9}});
  CHECK(model.reducer.traffic().sent_bytes == 3 * 8);
  const std::vector<HookTensor> state = model.hook->state();
  REQUIRE(state.size() == 3);
  CHECK(state[2].name == "error.b");
  CHECK(state[2].shape == std::vector<std::int64_t>{5});
  CHECK(state[2].per_rank);
  CHECK(static_cast<const float*>(state[2].view.data)[1] == 2);
  // The buckets are others now. The kept errors are still there.
  CHECK(model.average({{0, 0, 0, 0, 0}, {0, 0.5F, 0, 0, 0}}) ==
        Model::Gradients{{1, 0, 0, 2, 0}, {0, 2.5F, 0, 0, 0}});

  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  Model random("topk:0.01:0", {{500}, {700}});
  std::vector<float> kept(500);
  for (int iteration = 0; iteration < 20; ++iteration) {
    Model::Gradients gradients{std::vector<float>(500), std::vector<float>(700)};
    for (auto& gradient : gradients) {
      for (float& value : gradient) value = normal(generator);
    }
    const std::vector<float> sent = random.average(gradients)[0];
    const auto* error = static_cast<const float*>(random.hook->state()[1].view.data);
    for (std::size_t i = 0; i < 500; ++i) {
      REQUIRE(sent[i] + error[i] == gradients[0][i] + kept[i]);
    }
    kept.assign(error, error + 500);
  }
}

TEST_CASE("top-k: a value that is not finite travels at once and is not kept") {
  Model model("topk:0.1:0", {{10}});
  std::vector<float> gradient(10, 1);
  gradient[7] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(model.average({gradient})[0][7]));
  const std::vector<float> next = model.average({std::vector<float>(10, 0)})[0];
  CHECK(std::none_of(next.begin(), next.end(), [](float value) { return std::isnan(value); }));
}

TEST_CASE("top-k: the iteration after one without finite values begins with nothing kept") {
  Model model("topk:0.1:0", {{20}});
  CHECK(std::isnan(model.average({std::vector<float>(20, NAN)})[0][0]));
  CHECK(model.average({std::vector<float>(20, 1)})[0][0] == 1);
  const auto* error = static_cast<const float*>(model.hook->state()[1].view.data);
  CHECK(std::vector<float>(error, error + 3) == std::vector<float>{0, 0, 1});
}

TEST_CASE("hooks with a memory take back what they sent of a gradient that nobody wants") {
  for (const char* text : {"topk:0.2:0", "powersgd:1:0"}) {
    CAPTURE(text);
    Model model(text, {{10, 10}, {10, 10}});
    std::mt19937 generator(3);
    std::normal_distribution<float> normal;
    Model::Gradients gradients{std::vector<float>(100), std::vector<float>(100)};
    for (auto& gradient : gradients) {
      for (float& value : gradient) value = normal(generator);
    }
    model.average(gradients);
    const auto kept_of = [&](const std::string& name) {
      std::vector<float> kept;
      for (const HookTensor& tensor : model.hook->state()) {
        const auto* data = static_cast<const float*>(tensor.view.data);
        if (tensor.name == "error." + name) kept.assign(data, data + tensor.view.count);
      }
      return kept;
    };
    const std::vector<float> before = kept_of("a"), other = kept_of("b");
    for (auto& gradient : gradients) gradient.assign(100, 0);
    const Model::Gradients averages = model.average(gradients);
    REQUIRE(averages[0] != std::vector<float>(100, 0));
    auto* const slot = static_cast<float*>(model.reducer.gradient(0).data);
    slot[0] = NAN;  // a NaN can't be kept, so it isn't
    model.reducer.take_back(0);
    const std::vector<float> after = kept_of("a");
    for (std::size_t i = 1; i < 100; ++i) CHECK(std::abs(after[i] - before[i]) < 1e-5F);
    CHECK(std::isfinite(after[0]));
    CHECK(kept_of("b") != other);
  }
}

TEST_CASE("hooks with a memory take back nothing of an iteration that was averaged as it is") {
  for (const char* text : {"topk:0.2:2", "powersgd:1:2"}) {
    CAPTURE(text);
    Model model(text, {{10, 10}});
    const Model::Gradients gradients{std::vector<float>(100, 3)};
    for (int iteration = 0; iteration < 2; ++iteration) {
      CHECK(model.average(gradients) == gradients);
      model.reducer.take_back(0);
    }
    const HookTensor error = model.hook->state().back();
    REQUIRE(error.name == "error.a");
    const auto* kept = static_cast<const float*>(error.view.data);
    CHECK(std::vector<float>(kept, kept + 100) == std::vector<float>(100, 0));
  }
}

TEST_CASE("PowerSGD: a matrix of its rank is exact, vectors travel as they are") {
  Model model("powersgd:2:1", {{40, 50}, {7}});
  std::vector<float> matrix(2000), vector{1, 2, 3, 4, 5, 6, 7};
  for (std::size_t i = 0; i < 40; ++i) {
    for (std::size_t j = 0; j < 50; ++j) {
      matrix[i * 50 + j] =
          static_cast<float>(i) - static_cast<float>(j * j % 7) * 0.5F * static_cast<float>(i % 3);
    }
  }
  // Compression has not begun.
  CHECK(model.average({matrix, vector}) == Model::Gradients{matrix, vector});
  const std::uint64_t before = model.reducer.traffic().sent_bytes;
  for (int iteration = 0; iteration < 3; ++iteration) {
    const Model::Gradients result = model.average({matrix, vector});
    CHECK(result[1] == vector);
    float worst = 0;
    for (std::size_t i = 0; i < 2000; ++i)
      worst = std::max(worst, std::abs(result[0][i] - matrix[i]));
    CHECK(worst < 1e-4F);
  }
  CHECK(model.reducer.traffic().sent_bytes - before == 3 * 4 * (2 * (40 + 50) + 7));
}

TEST_CASE("PowerSGD: zeros and values that are not finite leave nothing behind") {
  Model model("powersgd:2:0", {{20, 30}});
  const std::vector<float> zeros(600), ones(600, 1);
  CHECK(model.average({zeros})[0] == zeros);
  std::vector<float> broken = ones;
  broken[5] = kInfinity;
  const std::vector<float> poisoned = model.average({broken})[0];
  CHECK(std::all_of(poisoned.begin(), poisoned.end(), [](float each) { return std::isnan(each); }));
  const std::vector<float> healed = model.average({ones})[0];
  CHECK(std::all_of(healed.begin(), healed.end(),
                    [](float each) { return std::abs(each - 1) < 1e-5F; }));
}

TEST_CASE("PowerSGD: another one that gets its state goes on the same way") {
  const auto gradient_of = [](int iteration) {
    std::mt19937 generator(static_cast<unsigned>(iteration));
    std::normal_distribution<float> normal;
    std::vector<float> gradient(600);
    for (float& value : gradient) value = normal(generator);
    return gradient;
  };
  Model whole("powersgd:1:2", {{20, 30}}), second("powersgd:1:2", {{20, 30}});
  for (int iteration = 0; iteration < 4; ++iteration) whole.average({gradient_of(iteration)});
  const auto from = whole.hook->state(), to = second.hook->state();
  REQUIRE(from.size() == 3);
  for (std::size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.size_bytes());
  }
  for (int iteration = 4; iteration < 7; ++iteration) {
    CHECK(second.average({gradient_of(iteration)}) == whole.average({gradient_of(iteration)}));
  }
}

TEST_CASE("top-k: the first iterations are averaged as they are, also counted over a checkpoint") {
  Model first("topk:0.1:3", {{10}}), second("topk:0.1:3", {{10}});
  const std::vector<float> gradient = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (int i = 0; i < 2; ++i) CHECK(first.average({gradient})[0] == gradient);
  const auto from = first.hook->state(), to = second.hook->state();
  REQUIRE(from.size() == 2);
  for (std::size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.size_bytes());
  }
  for (Model* model : {&first, &second}) {
    CHECK(model->average({gradient})[0] == gradient);
    CHECK(model->average({gradient})[0] == std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 0, 10});
  }
}

TEST_CASE("hooks with a memory refuse the gradients of a second model") {
  for (const char* text : {"topk", "powersgd"}) {
    Model first(text, {{40, 50}});
    const auto communicator = make_solo_communicator();
    Reducer second(*communicator, Model::specs({{50, 50}}));
    CHECK(contains(error_of([&] { second.set_hook(first.hook); }).what(), "another model (a)"));
  }
}
