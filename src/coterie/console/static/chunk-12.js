function e(n,r=""){if(n==null)return"null";if(Array.isArray(n))return n.length===0?"[]":n.map(i=>`${r}- ${c(i,`${r}  `).trimStart()}`).join(`
`);if(typeof n=="object"){let i=Object.entries(n).filter(([,t])=>t!==void 0);return i.length===0?"{}":i.map(([t,o])=>{let f=c(o,`${r}  `);return g(o)?`${r}${s(t)}:
${f}`:`${r}${s(t)}: ${f.trimStart()}`}).join(`
`)}return typeof n=="string"?s(n):String(n)}function g(n){return typeof n=="object"&&n!==null&&(Array.isArray(n)?n.length>0:Object.keys(n).length>0)}function c(n,r){if(typeof n=="string"&&$(n)){let i=n.replace(/\n$/,"").split(`
`);return[n.endsWith(`
`)?"|":"|-",...i.map(t=>t?r+t:"")].join(`
`)}return g(n)?e(n,r):e(n)}function $(n){return/^[^ \n][^]*\n/.test(n)&&!n.endsWith(`

`)&&!/[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]/.test(n)}function s(n){return/^[A-Za-z_/][A-Za-z0-9_./ -]*$/.test(n)&&!/^(true|false|null|yes|no|on|off)$/i.test(n)&&!n.endsWith(" ")?n:JSON.stringify(n)}export{e as a};
