// The npm client against the gateway that BASE_URL names.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: 'any', maxRetries: 0 });
const messages = [
  { role: 'system', content: 'You help.' },
  { role: 'user', content: 'Hello?' },
];

test('chat', async () => {
  const c = await client.chat.completions.create({ model: 'sim', messages, max_tokens: 12 });
  assert.equal(c.choices.length, 1);
  assert.equal(c.choices[0].finish_reason, 'length');
  assert.ok(c.choices[0].message.content);
  assert.equal(c.usage.completion_tokens, 12);
});

test('streaming', async () => {
  const stream = await client.chat.completions.create({
    model: 'sim', messages, max_tokens: 12, stream: true, stream_options: { include_usage: true },
  });
  let text = '';
  let events = 0;
  let usage;
  for await (const chunk of stream) {
    events++;
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.ok(events >= 12, `${events} events`);
  assert.equal(usage.completion_tokens, 12);
  const c = await client.chat.completions.create({ model: 'sim', messages, max_tokens: 12 });
  assert.equal(text, c.choices[0].message.content);
});

test('the stream helper', async () => {
  const runner = client.chat.completions.stream({ model: 'sim', messages });
  const c = await runner.finalChatCompletion();
  assert.ok(c.choices[0].message.content);
});

test('a stream that is left', async () => {
  const stream = await client.chat.completions.create({ model: 'sim', messages, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    break;
  }
});

test('a later turn finds the cache of the first', async () => {
  const long = [{ role: 'system', content: 'You know a lot about node. '.repeat(40) }, { role: 'user', content: 'One?' }];
  const one = await client.chat.completions.create({ model: 'sim', messages: long });
  const two = await client.chat.completions.create({
    model: 'sim', messages: [...long, one.choices[0].message, { role: 'user', content: 'Two?' }],
  });
  assert.equal(two.system_fingerprint, one.system_fingerprint);
  assert.ok(two.usage.prompt_tokens_details.cached_tokens > 0);
});

test('completions', async () => {
  const c = await client.completions.create({ model: 'sim', prompt: ['one', 'two'] });
  assert.equal(c.choices.length, 2);
  const stream = await client.completions.create({ model: 'sim', prompt: [1, 2, 3], stream: true });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.ok(text);
});

test('embeddings', async () => {
  // The client asks for base64 unless told otherwise.
  const coded = await client.embeddings.create({ model: 'embedder', input: ['a', 'b'] });
  const plain = await client.embeddings.create({ model: 'embedder', input: ['a', 'b'], encoding_format: 'float' });
  assert.equal(coded.data.length, 2);
  assert.equal(coded.data[1].embedding.length, plain.data[1].embedding.length);
});

test('responses', async () => {
  const r = await client.responses.create({ model: 'sim', instructions: 'Help.', input: 'Hello?' });
  assert.ok(r.output_text);
});

test('models', async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.deepEqual(ids, ['sim', 'embedder']);
  const m = await client.models.retrieve('sim');
  assert.equal(m.id, 'sim');
  assert.equal(m.object, 'model');
});

test('errors', async () => {
  await assert.rejects(client.chat.completions.create({ model: 'nobody', messages }), (e) => {
    assert.ok(e instanceof OpenAI.NotFoundError);
    assert.equal(e.status, 404);
    assert.equal(e.code, 'model_not_found');
    assert.equal(e.param, 'model');
    assert.equal(e.type, 'not_found_error');
    return true;
  });
  await assert.rejects(client.chat.completions.create({ model: 'nobody', messages, stream: true }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ messages }), (e) => {
    assert.ok(e instanceof OpenAI.BadRequestError);
    assert.equal(e.code, 'missing_required_field');
    return true;
  });
  await assert.rejects(client.chat.completions.create({ model: 7, messages }), OpenAI.BadRequestError);
  await assert.rejects(client.models.retrieve('nobody'), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ model: 'sim', messages, max_tokens: -5 }), OpenAI.BadRequestError);
});
